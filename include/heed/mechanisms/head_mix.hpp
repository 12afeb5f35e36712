// Heads that mix, entry by entry, before softmax or (after{...}) behind it.
//
//   head_mix    Z_o <- sum over h of W[o,h] Z_h                    all heads
//   group_mix   Z_(m ch + o) <- sum over r of M[m][r][o] Z_(m ch + r)   groups of ch neighbours
//
// Invisible entries and logits of -inf are 0 where a stage reads them; invisible entries stay
// invisible. The two matrices have opposite orders, those of the published code. Cost: as many
// multiply-adds per score as heads mix.
// Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
//
// The attention of the Differential Transformer (Ye et al., arXiv 2410.05258), softmax of one head
// minus lambda times softmax of its partner, is after{group_mix{M}} with M[m] = [[1, 1],
// [-lambda, -lambda]]: heads 2m and 2m + 1 hold the two maps, their value heads the two halves of
// the pair's value; both end up with the same weights. The pair's two outputs side by side are its
// 2 Dv components, which the caller norms and multiplies by 1 - lambda_init(layer).
#pragma once

#include <string>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/mix.hpp"

namespace heed::inline HEED_ABI {

namespace detail {

inline constexpr hook mix_hooks =
    hook::check | hook::geometry | hook::active | hook::plan | hook::rows | hook::forward;

template <class T, class Arch>
struct mix_rows {
  const T* weights;
  index group;
  T* aside;

  void forward(const panel<T, Arch>& p) const {
    kernel::mix_heads(p, weights + p.head * group, group, aside);
  }
};
template <class T>
struct mix_plan {
  const T* weights;  // [Hq out][group in]
  index group;

  template <class Arch>
  auto rows(const rows_context<T, Arch>& c) const {
    const index columns = weights == nullptr ? 0 : kernel::mix_columns<T, Arch>;
    return mix_rows<T, Arch>{weights, group, c.memory.template take<T>(group * columns)};
  }
};
// Packs weight(out, in), both counted in the call and in the group of out.
template <class T, class Arch, class Weight>
mix_plan<T> plan_mix(const plan_context<T, Arch>& c, bool active, index group,
                     const Weight& weight) {
  if (!active) return {nullptr, 0};
  T* weights = c.memory.template take<T>(c.problem.Hq * group);
  for (index o = 0; o < c.problem.Hq; ++o) {
    for (index in = 0; in < group; ++in) weights[o * group + in] = static_cast<T>(weight(o, in));
  }
  return {weights, group};
}

}  // namespace detail

// A full mix of heads. Without a matrix (a default view) the stage is not there.
template <class T>
struct head_mix {
  static constexpr place where = place::logits;
  static constexpr hook hooks = detail::mix_hooks;

  tensor_view<const T, 2> matrix;  // [Hq out, Hq in]

  bool active() const noexcept { return matrix.data() != nullptr; }

  // Throws shape_error unless the matrix is [Hq, Hq].
  void check(const problem& p) const {
    if (!active()) return;
    check_extents("head_mix", "matrix", matrix, {{{"heads out", p.Hq}, {"heads in", p.Hq}}});
  }
  heed::geometry geometry() const {
    return {0, 0, 0, matrix.extent(1), heed::geometry::invisible::zero};
  }
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    return detail::plan_mix(c, active(), matrix.extent(1),
                            [&](index out, index in) { return matrix(out, in); });
  }
};
template <class T>
head_mix(tensor_view<T, 2>) -> head_mix<std::remove_const_t<T>>;

// A mix within groups of ch neighbouring heads. Without matrices (a default view) the stage is not
// there.
template <class T>
struct group_mix {
  static constexpr place where = place::logits;
  static constexpr hook hooks = detail::mix_hooks;

  tensor_view<const T, 3> matrices;  // [Hq / ch, ch in, ch out]

  bool active() const noexcept { return matrices.data() != nullptr; }

  // Throws shape_error unless the matrices are square and groups times ch is Hq.
  void check(const problem& p) const {
    if (!active()) return;
    const index ch = matrices.extent(1);
    if (ch < 1 || p.Hq % ch != 0) {
      throw_axis_error("group_mix", "matrices", 1, "heads in", ch,
                       "a divisor of the " + std::to_string(p.Hq) + " query heads");
    }
    check_extents("group_mix", "matrices", matrices,
                  {{{"groups", p.Hq / ch}, {"heads in", ch}, {"heads out", ch}}});
  }
  heed::geometry geometry() const {
    return {0, 0, 0, matrices.extent(1), heed::geometry::invisible::zero};
  }
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    const index ch = matrices.extent(1);
    return detail::plan_mix(c, active(), ch,
                            [&](index out, index in) { return matrices(out / ch, in, out % ch); });
  }
};
template <class T>
group_mix(tensor_view<T, 3>) -> group_mix<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
