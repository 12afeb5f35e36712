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

namespace heed::inline HEED_ABI {

template <class T>
struct relative {
  tensor_view<const T, 2> embedding;  // [D, n], shared by all heads
  bool extend = false;                // distances above n - 1 use column 0 instead of nothing

  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::plan | hook::rows | hook::forward;

  // Throws shape_error unless the embedding is [D, n] with n >= 1.
  void check(const problem& p) const {
    check_extents("relative", "embedding", embedding,
                  {{{"head size", p.D}, {"distances", embedding.extent(1)}}});
    if (embedding.extent(1) < 1) {
      throw_axis_error("relative", "embedding", 1, "distances", 0, "at least 1");
    }
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
  struct rows_type {
    const T* terms;  // [heads][count][ld]: scale <q_i, e_n>
    index ld, n, count;
    bool extend;

    // L_ij <- L_ij + scale <q_i, e[:, n - 1 - (p_i - j)]>
    template <class Arch>
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
      return rows_type{terms, ld, n, c.count, extend};
    }
  };
};
template <class T>
relative(tensor_view<T, 2>) -> relative<std::remove_const_t<T>>;
template <class T>
relative(tensor_view<T, 2>, bool) -> relative<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
