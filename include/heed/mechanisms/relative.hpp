// Learned relative positions.
//
//   L_ij <- L_ij + scale <q_i, e[:, n - 1 - d]>      d = p_i - j, the distance of the key
//
// The last column of the embedding e [D, n] is distance 0. Farther keys than n - 1 get nothing, or
// column 0 with `extend`; keys newer than the query get nothing. q is the caller's, before RoPE
// and PaTH. Cost: n products of length D per row and head, one addition per score.
// Shaw et al., arXiv 1803.02155; this form is the relative bias of Golovneva et al.,
// Contextual Position Encoding, arXiv 2405.18719.
#pragma once

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/pack.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/kernel/reverse.hpp"

namespace heed::inline HEED_ABI {

template <class T>
struct relative_grad {
  tensor_view<T, 2> embedding = {};
};

// Without an embedding (a default view) the stage is not there.
template <class T>
struct relative {
  tensor_view<const T, 2> embedding;  // [D, n], shared by all heads
  bool extend = false;                // distances above n - 1 use column 0 instead of nothing

  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::active | hook::plan | hook::rows |
                                hook::forward | hook::adds | hook::gradients | hook::sums |
                                hook::begin_backward | hook::backward | hook::end_backward;
  using gradient_type = relative_grad<T>;

  bool active() const noexcept { return embedding.data() != nullptr; }

  // Throws shape_error unless the embedding is [D, n] with n >= 1.
  void check(const problem& p) const {
    if (!active()) return;
    check_extents("relative", "embedding", embedding,
                  {{{"head size", p.D}, {"distances", embedding.extent(1)}}});
    if (embedding.extent(1) < 1) {
      throw_axis_error("relative", "embedding", 1, "distances", 0, "at least 1");
    }
  }

  template <class F>
  void gradients(const relative_grad<T>& d, const F& f) const {
    f("relative.embedding", d.embedding, embedding);
  }
  template <class Arch>
  auto sums(const relative_grad<T>& d, const owner_context<T, Arch>& c) const {
    if (d.embedding.data() == nullptr) return sums_type{};
    const index D = embedding.extent(0), n = embedding.extent(1);
    const index ld = kernel::round_up(n, kernel::width<T, Arch>);
    sums_type s{d.embedding, c.memory.template take<T>(D * ld), ld};
    for (index i = 0; i < D * ld; ++i) s.table[i] = T(0);
    return s;
  }

  template <class Arch>
  auto plan(const plan_context<T, Arch>& c) const {
    const index D = embedding.extent(0), n = embedding.extent(1);
    const index ld = kernel::round_up(n, kernel::width<T, Arch>);
    T* table = c.memory.template take<T>(D * ld);
    kernel::copy_rows<Arch>(embedding.data(), embedding.stride(0), embedding.stride(1), D, n, table,
                            ld);
    return plan_type{table, ld, n, extend};
  }

 private:
  struct sums_type {
    tensor_view<T, 2> to;
    T* table = nullptr;  // [D][ld]
    index ld = 0;

    void reduce() const {
      for (index d = 0; d < to.extent(0); ++d) {
        for (index n = 0; n < to.extent(1); ++n) to(d, n) += table[d * ld + n];
      }
    }
  };
  template <class Arch>
  struct rows_type {
    const T* terms;  // [heads][count][ld]: scale <q_i, e_n>
    const T* table;  // [D][ld]
    index ld, n, D, heads, count;
    bool extend;
    // In the reverse sweep.
    T* dterms = nullptr;   // [heads][count][ld]
    T* queries = nullptr;  // [heads][count][D]: scale q_i
    T* columns = nullptr;  // [n][ldd]: scale e_n
    T* dtable = nullptr;   // [D][ld]
    index ldd = 0;

    // L_ij <- L_ij + scale <q_i, e[:, n - 1 - (p_i - j)]>
    void forward(const panel<T, Arch>& p) const {
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          T* line = p.line(g, r);
          const T* term = terms + (g * count + r) * ld;
          const index shift = n - 1 - p.position(r) + p.column;  // column c reads term[c + shift]
          const index known = (std::clamp)(-shift, p.first, p.last);
          const index newer = (std::clamp)(n - shift, p.first, p.last);
          for (index c = known; c < newer; ++c) line[c] += term[c + shift];
          if (!extend) continue;
          for (index c = p.first; c < known; ++c) line[c] += term[0];
        }
      }
    }
    void begin_backward(const reverse_context<T, Arch>& c, const sums_type& sums) {
      dtable = sums.table;
      dterms = c.memory.template take<T>(heads * count * ld);
      for (index i = 0; i < heads * count * ld; ++i) dterms[i] = T(0);
      const T scale = static_cast<T>(c.rows.problem.scale);
      queries = c.memory.template take<T>(heads * count * D);
      for (index g = 0; g < heads; ++g) {
        index step = 0;
        const T* q = c.rows.query(g, 0, step);
        kernel::copy_rows<Arch>(q, c.rows.inputs.q.stride(1), step, count, D,
                                queries + g * count * D, D, scale);
      }
      ldd = kernel::round_up(D, kernel::width<T, Arch>);
      columns = c.memory.template take<T>(n * ldd);
      kernel::copy_rows<Arch>(table, index{1}, ld, n, D, columns, ldd, scale);
    }
    // forward: dterm += dL
    void backward(const reverse_panel<T, Arch>& p) const {
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          const T* line = p.line(g, r);
          T* term = dterms + (g * count + r) * ld;
          const index shift = n - 1 - p.position(r) + p.column;
          const index known = (std::clamp)(-shift, p.first, p.last);
          const index newer = (std::clamp)(n - shift, p.first, p.last);
          for (index c = known; c < newer; ++c) term[c + shift] += line[c];
          if (!extend) continue;
          for (index c = p.first; c < known; ++c) term[0] += line[c];
        }
      }
    }
    // rows: dq_i += scale sum over n of dterm_in e_n,  de_n += scale sum over i of dterm_in q_i
    void end_backward(const head_rows<T>& dq) const {
      for (index g = 0; g < heads; ++g) {
        const T* term = dterms + g * count * ld;
        kernel::product<Arch>(term, ld, columns, ldd, dq.row(g, 0), dq.row_stride, count, D, n,
                              kernel::start::add);
        if (dtable == nullptr) continue;
        kernel::product_transposed<Arch>(queries + g * count * D, D, term, ld, dtable, ld, D, n,
                                         count, kernel::start::add);
      }
    }
  };
  struct plan_type {
    const T* table;
    index ld, n;
    bool extend;

    template <class Arch>
    auto rows(const rows_context<T, Arch>& c) const {
      const index D = c.problem.D;
      T* terms = c.memory.template take<T>(c.heads * c.count * ld);
      T* query = c.memory.template take<T>(c.count * D);
      for (index g = 0; g < c.heads; ++g) {
        index step = 0;
        const T* q = c.query(g, 0, step);
        kernel::copy_rows<Arch>(q, c.inputs.q.stride(1), step, c.count, D, query, D,
                                static_cast<T>(c.problem.scale));
        kernel::product<Arch>(query, D, table, ld, terms + g * c.count * ld, ld, c.count, n, D,
                              kernel::start::zero);
      }
      return rows_type<Arch>{terms, table, ld, n, D, c.heads, c.count, extend};
    }
  };
};
template <class T>
relative_grad(tensor_view<T, 2>) -> relative_grad<T>;
template <class T>
relative(tensor_view<T, 2>) -> relative<std::remove_const_t<T>>;
template <class T>
relative(tensor_view<T, 2>, bool) -> relative<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
