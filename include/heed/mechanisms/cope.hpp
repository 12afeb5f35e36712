// CoPE: contextual position encoding. Positions count what the query finds worth counting.
//
//   G_is = sigmoid(x_is) for visible keys, else 0        gates
//   p_ij = min(sum over s >= j of G_is, npos - 1)        positions, key j included
//   zp_ij = z_i at p_ij, linear between z_in = <q_i, e_n>, n = floor p and ceil p
//   L_ij <- L_ij + scale zp_ij    (divided),   or   L_ij + zp_ij    (undivided)
//
// q is the caller's, before RoPE and PaTH, and z is not scaled. Gates from the keys read the logit
// that reaches CoPE, x_ij = L_ij; gates from separate keys u or from the values are
// x_ij = <q_i, u_j> / sqrt(D). Without causality the sum runs over all newer keys, too.
// At a whole number p the value is z_ip; entry npos is never read. A row whose count has reached
// npos - 1 is saturated: its older keys get the constant z_i,npos-1 and their gates are not read.
//
// Cost: npos products of length D per row and head; per score a sigmoid, a prefix sum and two table
// look-ups until the row is saturated, then one addition; one more product for gates that are not
// from the keys. Memory: 2 npos numbers per row of a row block; S x D for packed gate keys.
// Golovneva et al., Contextual Position Encoding, arXiv 2405.18719.
#pragma once

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/pack.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/kernel/positions.hpp"

namespace heed::inline HEED_ABI {

// Whether position logits are multiplied by the scale like q.k (the published repository's
// default, its `nodiv` off) or added as they are (the paper's listing, `nodiv` on).
enum class cope_scale { divided, undivided };

// Where the gates come from; values need Dv = D.
enum class cope_gates { keys, separate_keys, values };

template <class T>
struct cope {
  tensor_view<const T, 3> embedding = {};  // [1|Hq, D, npos]
  cope_scale scale = cope_scale::divided;
  cope_gates gates = cope_gates::keys;
  tensor_view<const T, 4> gate_keys = {};  // [B, S, Hkv, D], with cope_gates::separate_keys only

  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::geometry | hook::plan | hook::rows |
                                hook::forward | hook::constant_from_here;

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

  // Gates from the keys are sigmoid(-inf) = 0 where nothing is visible.
  heed::geometry geometry() const noexcept {
    heed::geometry g;
    if (gates == cope_gates::keys) g.reads = heed::geometry::invisible::minus_infinity;
    return g;
  }

  template <class Arch>
  auto plan(const plan_context<T, Arch>& c) const {
    // A row counts at most S: of a longer table the rest is never reached.
    const index entries = (std::min)(embedding.extent(2), c.sequence.S + 1);
    plan_type<Arch> p{*this, embedding, entries, nullptr, 0};
    if (embedding.stride(2) != 1 || embedding.extent(2) % kernel::width<T, Arch> != 0) {
      p.table = copy_table<Arch>(entries, c.memory);
    }
    if (gates != cope_gates::keys) {
      p.gate_size = kernel::packed_columns_size<Arch, T>(c.sequence.S, c.problem.D);
      p.gate_keys = pack_gate_keys(c, p.gate_size);
    }
    return p;
  }

 private:
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

  template <class Arch>
  struct rows_type {
    using table_type = kernel::position_table<T, Arch>;

    const T* tables;                      // [heads][count] lines: value, then rise
    kernel::gate_count<T, Arch>* counts;  // [heads][count]
    index count, limit;
    // For gates that are not from the keys.
    const T* queries = nullptr;    // [heads][count][D]: q / sqrt(D)
    const T* gate_keys = nullptr;  // [Hkv][gate_size]
    index gate_size = 0, group = 1, D = 0;
    workspace* scratch = nullptr;

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
    // Rows [begin, end) of x_ij = <q_i, u_j> / sqrt(D), laid out like the panel.
    void gate_logits(const panel<T, Arch>& p, index g, T* to) const {
      constexpr index strip = kernel::strip_width<T, Arch>;
      const T* keys = gate_keys + (p.head + g) / group * gate_size;
      for (index c = p.first; c < p.last;) {
        const index within = p.key(c) % strip;
        const index n = (std::min)(strip - within, p.last - c);
        kernel::product<Arch>(queries + (g * count + p.begin) * D, D,
                              keys + (p.key(c) - within) * D + within, strip, to + c, p.row_stride,
                              p.end - p.begin, n, D, kernel::start::zero);
        c += n;
      }
    }
    void add(const panel<T, Arch>& p, const T* logits) const {
      const index size = table_type::size(limit + 1);
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          const T* line = tables + (g * count + r) * 2 * size;
          T* x = p.line(g, r) + p.first;
          kernel::add_positions<T, Arch>(
              x, logits + (x - p.data), p.last - p.first,
              table_type{line, line + size, table_type::last_block_of(limit + 1)}, limit,
              counts[g * count + r]);
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
    index gate_size;

    auto rows(const rows_context<T, Arch>& c) const {
      using table_type = kernel::position_table<T, Arch>;
      const index D = c.problem.D, n = (std::min)(entries, c.newest + 1);
      const index line = 2 * table_type::size(n);
      T* tables = c.memory.template take<T>(c.heads * c.count * line);
      auto* counts = c.memory.template take<kernel::gate_count<T, Arch>>(c.heads * c.count);
      for (index r = 0; r < c.heads * c.count; ++r) counts[r] = {};
      rows_type<Arch> rows{tables, counts, c.count, n - 1};
      if (gate_keys != nullptr) {
        T* queries = c.memory.template take<T>(c.heads * c.count * D);
        const T factor = T(1) / std::sqrt(static_cast<T>(D));
        for (index g = 0; g < c.heads; ++g) load(c, g, factor, queries + g * c.count * D);
        rows.queries = queries;
        rows.gate_keys = gate_keys;
        rows.gate_size = gate_size;
        rows.group = c.problem.group();
        rows.D = D;
        rows.scratch = &c.memory;
      }
      const workspace::scope taken(c.memory);
      T* queries = c.memory.template take<T>(c.count * D);
      const T factor = m.scale == cope_scale::divided ? static_cast<T>(c.problem.scale) : T(1);
      for (index g = 0; g < c.heads; ++g) {
        load(c, g, factor, queries);
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
