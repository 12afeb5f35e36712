// CoPE: contextual position encoding. Positions count what the query finds worth counting.
//
//   G_is = sigmoid(x_is) for visible keys, else 0        gates
//   p_ij = min(sum over s >= j of G_is, npos - 1)        positions, key j included
//   zp_ij = z_i at p_ij, linear between z_in = <q_i, e_n>, n = floor p and ceil p
//   L_ij <- L_ij + scale zp_ij    (divided),   or   L_ij + zp_ij    (undivided)
//
// q is the caller's, before RoPE and PaTH, and z is not scaled. Gates from the keys read the logit
// that reaches CoPE, x_ij = L_ij; gates from separate keys u or from the values are
// x_ij = scale <q_i, u_j>. Without causality the sum runs over all newer keys, too.
// At a whole number p the value is z_ip; entry npos is never read. A row whose count has reached
// npos - 1 is saturated: its older keys get the constant z_i,npos-1 and their gates are not read.
//
// Backward: slope 0 at whole positions and where the count has reached npos - 1.
// Cost: npos products of length D per row and head; per score a sigmoid, a prefix sum and two table
// look-ups until the row is saturated, then one addition; one more product for gates that are not
// from the keys. Memory: 2 npos numbers per row of a row block; S x D for packed gate keys.
// Golovneva et al., Contextual Position Encoding, arXiv 2405.18719.
#pragma once

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/cached_keys.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/pack.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/kernel/position_gradients.hpp"
#include "heed/kernel/positions.hpp"
#include "heed/kernel/reverse.hpp"

namespace heed::inline HEED_ABI {

// Whether position logits are multiplied by the scale like q.k (the published repository's
// default, its `nodiv` off) or added as they are (the paper's listing, `nodiv` on).
enum class cope_scale { divided, undivided };

// Where the gates come from; values need Dv = D.
enum class cope_gates { keys, separate_keys, values };

// The gradient of an embedding: of one table [D, npos] for all heads, or of [1|Hq, D, npos].
template <class T>
struct cope_table : tensor_view<T, 3> {
  cope_table() = default;
  cope_table(const tensor_view<T, 3>& per_head) : tensor_view<T, 3>(per_head) {}
  cope_table(const tensor_view<T, 2>& shared)
      : tensor_view<T, 3>(
            shared.data(), {1, shared.extent(0), shared.extent(1)},
            {shared.extent(0) * shared.stride(0), shared.stride(0), shared.stride(1)}) {}
};
template <class T>
struct cope_grad {
  cope_table<T> embedding = {};
  tensor_view<T, 4> gate_keys = {};  // [B, S, Hkv, D]
};

template <class T>
struct cope {
  tensor_view<const T, 3> embedding = {};  // [1|Hq, D, npos]
  cope_scale scale = cope_scale::divided;
  cope_gates gates = cope_gates::keys;
  tensor_view<const T, 4> gate_keys = {};  // [B, S, Hkv, D], with cope_gates::separate_keys only
  std::byte* kept = nullptr;               // a cache's: the gates' keys, packed

  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::geometry | hook::plan | hook::rows |
                                hook::forward | hook::constant_from_here | hook::gradients |
                                hook::sums | hook::carries | hook::forward_carries |
                                hook::begin_backward | hook::backward | hook::retreat |
                                hook::end_backward | hook::tokens | hook::keep;
  using gradient_type = cope_grad<T>;

  cope() = default;
  cope(const tensor_view<const T, 3>& per_head, cope_scale s = cope_scale::divided,
       cope_gates g = cope_gates::keys, const tensor_view<const T, 4>& keys = {})
      : embedding(per_head), scale(s), gates(g), gate_keys(keys) {}
  // One table [D, npos] for all heads.
  cope(const tensor_view<const T, 2>& shared, cope_scale s = cope_scale::divided,
       cope_gates g = cope_gates::keys, const tensor_view<const T, 4>& keys = {})
      : cope(tensor_view<const T, 3>(shared.data(), {1, shared.extent(0), shared.extent(1)},
                                     {0, shared.stride(0), shared.stride(1)}),
             s, g, keys) {}

  // Throws shape_error for a table that does not fit, npos < 1, gates from values with Dv != D,
  // separate keys that do not fit, or keys that would not be read.
  void check(const problem& p) const {
    check_extents(
        "cope", "embedding", embedding,
        {{{"query heads", p.Hq, true}, {"head size", p.D}, {"positions", embedding.extent(2)}}});
    if (embedding.extent(2) < 1) {
      throw_axis_error("cope", "embedding", 2, "positions", 0, "at least 1");
    }
    if (gates == cope_gates::values && p.Dv != p.D) {
      throw_axis_error("cope", "v", 3, "value head size", p.Dv,
                       std::to_string(p.D) + " for gates from the values");
    }
    if (gates == cope_gates::separate_keys) {
      check_extents("cope", "gate_keys", gate_keys,
                    {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}, {"head size", p.D}}});
    } else if (gate_keys.data() != nullptr) {
      throw shape_error("heed: cope: gate_keys: given, but gates are not separate_keys");
    }
  }

  template <class Self, class F>
  static void tokens(Self& m, const problem& p, const F& f) {
    if (m.gates != cope_gates::separate_keys) return;
    f("cope.gate_keys", m.gate_keys, shape<2>{p.Hkv, p.D});
  }

  // Gate keys as packed columns: [chunk][Hkv][64 D].
  std::size_t kept_bytes(const problem& p) const noexcept {
    return gates == cope_gates::keys
               ? 0
               : sizeof(T) * static_cast<std::size_t>(p.Hkv * p.D * kernel::cache_chunk);
  }
  template <class Arch>
  void keep(const keep_context<T, Arch>& c) const {
    if (gates == cope_gates::keys) return;
    const index D = c.problem.D, n = c.to - c.from;
    const workspace::scope taken(c.memory);
    T* rows = c.memory.template take<T>(n * D);
    const tensor_view<const T, 4> u =
        gates == cope_gates::values ? c.v : gate_keys.slice(1, c.from, c.to);
    for (index h = 0; h < c.problem.Hkv && n > 0; ++h) {
      kernel::copy_rows<Arch>(u.pointer(index{0}, index{0}, h, index{0}), u.stride(1), u.stride(3),
                              n, D, rows, D);
      // One chunk at a time: those of all heads follow one another.
      for (index j = 0; j < n;) {
        const index chunk = (c.from + j) / kernel::cache_chunk;
        const index count = (std::min)((chunk + 1) * kernel::cache_chunk - c.from, n) - j;
        T* to = reinterpret_cast<T*>(kept) + (chunk * c.problem.Hkv + h) * kernel::cache_chunk * D;
        kernel::cached_keys<T, Arch, T>{to, 0, D}.store(0, (c.from + j) % kernel::cache_chunk,
                                                        rows + j * D, D, count);
        j += count;
      }
    }
  }

  // Gates from the keys are sigmoid(-inf) = 0 where nothing is visible.
  heed::geometry geometry() const noexcept {
    heed::geometry g;
    if (gates == cope_gates::keys) g.reads = heed::geometry::invisible::minus_infinity;
    return g;
  }

  template <class F>
  void gradients(const cope_grad<T>& d, const F& f) const {
    f("cope.embedding", tensor_view<T, 3>(d.embedding), embedding);
    f("cope.gate_keys", d.gate_keys, gate_keys);
  }
  template <class Arch>
  auto sums(const cope_grad<T>& d, const owner_context<T, Arch>& c) const {
    return sums_type(d, (std::min)(embedding.extent(2), c.sequence.S + 1), c);
  }

  template <class Arch>
  auto plan(const plan_context<T, Arch>& c) const {
    // A row counts at most S: of a longer table the rest is never reached.
    const index entries = (std::min)(embedding.extent(2), c.sequence.S + 1);
    plan_type<Arch> p{*this, embedding, entries, nullptr, 0};
    if (embedding.stride(2) != 1 || embedding.extent(2) % kernel::width<T, Arch> != 0) {
      p.table = copy_table<Arch>(entries, c.memory);
    }
    if (gates != cope_gates::keys && kept != nullptr) {
      p.gate_keys = reinterpret_cast<const T*>(kept);
      p.gate_size = kernel::cache_chunk * c.problem.D;
      p.chunk_size = c.problem.Hkv * p.gate_size;
    } else if (gates != cope_gates::keys) {
      p.chunk_size = kernel::cache_chunk * c.problem.D;
      p.gate_size = kernel::packed_columns_size<Arch, T>(c.sequence.S, c.problem.D);
      p.gate_keys = pack_gate_keys(c, p.gate_size);
    }
    return p;
  }

 private:
  T factor(const problem& p) const noexcept {
    return scale == cope_scale::divided ? static_cast<T>(p.scale) : T(1);
  }
  // The first `entries` columns of each head's table, in whole vectors.
  template <class Arch>
  tensor_view<const T, 3> copy_table(index entries, workspace& memory) const {
    const index heads = embedding.extent(0), D = embedding.extent(1);
    const index ld = kernel::round_up(entries, kernel::width<T, Arch>);
    T* copy = memory.take<T>(heads * D * ld);
    for (index h = 0; h < heads; ++h) {
      kernel::copy_rows<Arch>(embedding.pointer(h, index{0}, index{0}), embedding.stride(1),
                              embedding.stride(2), D, entries, copy + h * D * ld, ld);
    }
    return {copy, {heads, D, entries}, {D * ld, ld, 1}};
  }
  // The gates' keys of the sequence as the product reads them, [Hkv] of `size` elements.
  template <class Arch>
  const T* pack_gate_keys(const plan_context<T, Arch>& c, index size) const {
    const tensor_view<const T, 4>& u = gates == cope_gates::values ? c.inputs.v : gate_keys;
    const sequence& s = c.sequence;
    T* packed = c.memory.template take<T>(c.problem.Hkv * size);
    for (index h = 0; h < c.problem.Hkv && s.S > 0; ++h) {
      kernel::pack_columns<Arch>(u.pointer(s.batch, s.first_key, h, index{0}), u.stride(1),
                                 u.stride(3), s.S, c.problem.D, packed + h * size);
    }
    return packed;
  }

  // What one gradient owner adds up.
  struct sums_type {
    cope_grad<T> to;
    index batch, first_key, S, head, heads, kv_head, kv_heads, entries;
    head_rows<T> table;      // [1|heads][entries][D]
    head_rows<T> gate_keys;  // [kv_heads][S][D]

    sums_type() = default;
    template <class Arch>
    sums_type(const cope_grad<T>& d, index n, const owner_context<T, Arch>& c)
        : to(d),
          batch(c.sequence.batch),
          first_key(c.sequence.first_key),
          S(c.sequence.S),
          head(c.head),
          heads(d.embedding.extent(0) == 1 ? 1 : c.heads),
          kv_head(c.head / (std::max)(index{1}, c.problem.group())),
          kv_heads(c.heads / (std::max)(index{1}, c.problem.group())),
          entries(n) {
      const index ld = kernel::round_up(c.problem.D, kernel::width<T, Arch>);
      if (d.embedding.data() != nullptr) table = zeros(heads, n, ld, c.memory);
      if (heads == 1) table.head_stride = 0;
      if (d.gate_keys.data() != nullptr) gate_keys = zeros(kv_heads, S, ld, c.memory);
    }
    void reduce() const {
      for (index h = 0; h < heads && table.data != nullptr; ++h) {
        const index at = to.embedding.extent(0) == 1 ? 0 : head + h;
        for (index n = 0; n < entries; ++n) {
          for (index d = 0; d < to.embedding.extent(1); ++d) {
            to.embedding(at, d, n) += table.row(h, n)[d];
          }
        }
      }
      for (index h = 0; h < kv_heads && gate_keys.data != nullptr; ++h) {
        for (index j = 0; j < S; ++j) {
          for (index d = 0; d < to.gate_keys.extent(3); ++d) {
            to.gate_keys(batch, first_key + j, kv_head + h, d) += gate_keys.row(h, j)[d];
          }
        }
      }
    }

   private:
    static head_rows<T> zeros(index n, index rows, index ld, workspace& memory) {
      T* data = memory.take<T>(n * rows * ld);
      for (index i = 0; i < n * rows * ld; ++i) data[i] = T(0);
      return {data, rows * ld, ld};
    }
  };
  template <class Arch>
  struct rows_type {
    using table_type = kernel::position_table<T, Arch>;

    cope m;
    tensor_view<const T, 3> embedding;    // rows in whole vectors
    const T* tables;                      // [heads][count] lines: value, then rise
    kernel::gate_count<T, Arch>* counts;  // [heads][count]
    index heads, count, limit;
    // For gates that are not from the keys.
    const T* queries = nullptr;    // [heads][count][D]: scale q
    const T* gate_keys = nullptr;  // of a head gate_size apart, chunks chunk_size
    index gate_size = 0, chunk_size = 0, group = 1, D = 0;
    workspace* scratch = nullptr;
    // In the reverse sweep.
    T* positions = nullptr;  // [heads][count]: sum of the older positions' gradients
    kernel::position_records<T, Arch> records = {};  // [heads][rows of a strip]
    kernel::table_gradient<T, Arch> dtable = {};
    kernel::gate_gradient<T, Arch> dgates = {};

    void carries(const auto& visit) const { visit(counts, heads * count); }

    // L_ij <- L_ij + z_i at p_ij
    void forward(const panel<T, Arch>& p) const {
      if (queries == nullptr) return add(p, p.data);
      const workspace::scope taken(*scratch);
      T* logits = scratch->template take<T>((p.heads - 1) * p.head_stride +
                                            (p.end - p.origin) * p.row_stride);
      for (index g = 0; g < p.heads; ++g) {
        if (!saturated(g, p.begin, p.end))
          gate_logits(p, g, logits + (p.line(g, p.begin) - p.data));
      }
      p.hide(logits, -std::numeric_limits<T>::infinity());
      add(p, logits);
    }
    void begin_backward(const reverse_context<T, Arch>& c, const sums_type& sums) {
      positions = c.memory.template take<T>(heads * count);
      for (index n = 0; n < heads * count; ++n) positions[n] = T(0);
      records.take(heads * count, c.rows.panel, limit, c.memory);
      head_rows<T> table = sums.table;
      if (table.data != nullptr) table.data = table.row(c.rows.head - sums.head, 0);
      dtable.take(c.rows, embedding, limit + 1, m.factor(c.rows.problem), table, c.memory);
      if (queries == nullptr) return;
      const bool values = m.gates == cope_gates::values;
      dgates.take(c.rows, values ? c.rows.inputs.v : m.gate_keys, queries,
                  static_cast<T>(c.rows.problem.scale), values ? c.values : sums.gate_keys,
                  c.kv_head, c.memory);
    }
    // add: dz_i at p_ij += dL_ij, dp_ij = dL_ij (slope of z_i at p_ij),
    //      dG_is = sum over j <= s of dp_ij, dx_is = dG_is G_is (1 - G_is)
    void backward(const reverse_panel<T, Arch>& p) {
      index first = p.last;
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          const kernel::position_record<T> record = records.line(g * count + r - p.origin);
          T* dl = p.line(g, r) + p.first;
          T* dx = queries == nullptr ? dl : dgates.line(g, r) + p.first;
          kernel::add_positions_backward<T, Arch>(dl, dx, p.last - p.first, record,
                                                  positions[g * count + r], dtable.pairs(g, r));
          first = (std::min)(first, p.first + *record.constant);
        }
      }
      if (queries != nullptr) dgates.note(p, first);
    }
    // gate_logits: dq_i += scale sum over j of dx_ij u_j,  du_j += scale sum over i of dx_ij q_i
    void retreat(index, index) {
      if (queries != nullptr) dgates.retreat();
    }
    // make_tables, gate_logits
    void end_backward(const head_rows<T>& dq) const {
      dtable.finish(dq);
      if (queries != nullptr) dgates.finish(dq);
    }
    // Where row r of head g is saturated: z_i,npos-1.
    bool constant_from_here(index g, index r, T& sum) const {
      if (!counts[g * count + r].reached(limit)) return false;
      sum += tables[(g * count + r) * 2 * table_type::size(limit + 1) + limit];
      return true;
    }

   private:
    bool saturated(index g, index begin, index end) const noexcept {
      bool all = true;
      for (index r = begin; r < end; ++r) {
        all = all && counts[g * count + r].reached(limit);
      }
      return all;
    }
    // Rows [begin, end) of x_ij = scale <q_i, u_j>, laid out like the panel.
    void gate_logits(const panel<T, Arch>& p, index g, T* to) const {
      constexpr index strip = kernel::strip_width<T, Arch>;
      const T* keys = gate_keys + (p.head + g) / group * gate_size;
      for (index c = p.first; c < p.last;) {
        const index chunk = p.key(c) / kernel::cache_chunk,
                    in_chunk = p.key(c) % kernel::cache_chunk;
        const index within = in_chunk % strip;
        const index n = (std::min)(strip - within, p.last - c);
        kernel::product<Arch>(queries + (g * count + p.begin) * D, D,
                              keys + chunk * chunk_size + (in_chunk - within) * D + within, strip,
                              to + c, p.row_stride, p.end - p.begin, n, D, kernel::start::zero);
        c += n;
      }
    }
    void add(const panel<T, Arch>& p, const T* logits) const {
      const index size = table_type::size(limit + 1);
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          const T* line = tables + (g * count + r) * 2 * size;
          T* x = p.line(g, r) + p.first;
          const table_type table{line, line + size, table_type::last_block_of(limit + 1)};
          const auto go = [&](const auto& record) HEED_INLINE_LAMBDA {
            kernel::add_positions<T, Arch>(x, logits + (x - p.data), p.last - p.first, table, limit,
                                           counts[g * count + r], record);
          };
          if (positions == nullptr) {
            go(kernel::no_record{});
          } else {
            go(records.line(g * count + r - p.origin));
          }
        }
      }
    }
  };

  template <class Arch>
  struct plan_type {
    cope m;
    tensor_view<const T, 3> table;  // rows in whole vectors
    index entries;
    const T* gate_keys;
    index gate_size, chunk_size = 0;

    auto rows(const rows_context<T, Arch>& c) const {
      using table_type = kernel::position_table<T, Arch>;
      const index D = c.problem.D, n = (std::min)(entries, c.newest + 1);
      const index line = 2 * table_type::size(n);
      T* tables = c.memory.template take<T>(c.heads * c.count * line);
      auto* counts = c.memory.template take<kernel::gate_count<T, Arch>>(c.heads * c.count);
      for (index r = 0; r < c.heads * c.count; ++r) counts[r] = {};
      rows_type<Arch> rows{m, table, tables, counts, c.heads, c.count, n - 1};
      if (gate_keys != nullptr) {
        T* queries = c.memory.template take<T>(c.heads * c.count * D);
        const T factor = static_cast<T>(c.problem.scale);
        for (index g = 0; g < c.heads; ++g) load(c, g, factor, queries + g * c.count * D);
        rows.queries = queries;
        rows.gate_keys = gate_keys;
        rows.gate_size = gate_size;
        rows.chunk_size = chunk_size;
        rows.group = c.problem.group();
        rows.D = D;
        rows.scratch = &c.memory;
      }
      const workspace::scope taken(c.memory);
      T* queries = c.memory.template take<T>(c.count * D);
      for (index g = 0; g < c.heads; ++g) {
        load(c, g, m.factor(c.problem), queries);
        make_tables(queries, c.head + g, c.count, n, tables + g * c.count * line);
      }
      return rows;
    }

   private:
    // The caller's queries of head g, times a factor.
    static void load(const rows_context<T, Arch>& c, index g, T factor, T* to) {
      index step = 0;
      const T* q = c.query(g, 0, step);
      const index D = c.problem.D;
      kernel::copy_rows<Arch>(q, c.inputs.q.stride(1), step, c.count, D, to, D, factor);
    }
    // z_in = factor <q_i, e_n> of n entries.
    void make_tables(const T* queries, index head, index count, index n, T* to) const {
      using table_type = kernel::position_table<T, Arch>;
      const index D = table.extent(1), line = 2 * table_type::size(n);
      const T* e = table.pointer(table.extent(0) == 1 ? 0 : head, index{0}, index{0});
      kernel::product<Arch>(queries, D, e, table.stride(1), to, line, count, n, D,
                            kernel::start::zero);
      for (index r = 0; r < count; ++r) table_type::complete(to + r * line, n);
    }
  };
};
template <class T, int Rank>
cope(tensor_view<T, Rank>) -> cope<std::remove_const_t<T>>;
template <class T, int Rank>
cope(tensor_view<T, Rank>, cope_scale) -> cope<std::remove_const_t<T>>;
template <class T, int Rank>
cope(tensor_view<T, Rank>, cope_scale, cope_gates) -> cope<std::remove_const_t<T>>;
template <class T, int Rank, class U>
cope(tensor_view<T, Rank>, cope_scale, cope_gates, tensor_view<U, 4>)
    -> cope<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
