// MTA: multi-token attention, as stages that can be used alone.
//
//   conv        Z_h[i,j] <- sum over a, b of K_h[a,b] Z_h[i - (cq-1) + a, j - b0 + b]
//   conv3       Z_h[i,j] <- sum over r, a, b of K_h[r,a,b] Z_(m ch + r)[i - (cq-1) + a, j - b0 + b]
//   head_mix    Z_o <- sum over h of W[o,h] Z_h
//   group_mix   Z_(m ch + o) <- sum over r of M[m][r][o] Z_(m ch + r)
//   after<S>    the same on the probabilities, after softmax
//   head_norm   y <- factor y / sqrt(mean(y^2) + eps) weight     on the output, per token and head
//   head_gate   y <- y sigmoid(weight y + bias)                  on the output, per token and head
//
// m is the group of head h. Invisible entries, entries outside of the rows and keys of the sequence
// in this call, and logits of -inf are 0 where a stage reads them. Invisible entries stay
// invisible: -inf before softmax, 0 after it. Probabilities are not normalised again.
// Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
#pragma once

#include <cmath>
#include <tuple>

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

// Which keys a convolution over ck keys reads around key j: as many older as newer (ck odd), older
// ones only, or newer ones only.
enum class conv_keys { both, left, right };

// b0 of the equations: how many older keys a kernel of ck keys reads.
constexpr index older_keys(index ck, conv_keys side) noexcept {
  return side == conv_keys::left ? ck - 1 : side == conv_keys::right ? 0 : (ck - 1) / 2;
}

namespace detail {
inline void check_kernel_size(const char* who, int axis, index cq, index ck, conv_keys side) {
  if (cq < 1) throw_axis_error(who, "kernel", axis, "kernel queries", cq, "at least 1");
  if (ck < 1) throw_axis_error(who, "kernel", axis + 1, "kernel keys", ck, "at least 1");
  if (side == conv_keys::both && ck % 2 == 0) {
    throw_axis_error(who, "kernel", axis + 1, "kernel keys", ck,
                     "an odd number to reach both sides");
  }
}
}  // namespace detail

// Key-query convolution, one kernel per head. The last row of the kernel is the query itself, the
// rows before it earlier queries.
template <class T>
struct conv {
  tensor_view<const T, 3> kernel;  // [Hq, cq, ck]
  conv_keys side = conv_keys::both;

  // Throws shape_error unless the kernel is [Hq, cq, ck] with cq, ck >= 1, ck odd for both sides.
  void check(const problem& p) const {
    check_extents("conv", "kernel", kernel,
                  {{{"query heads", p.Hq},
                    {"kernel queries", kernel.extent(1)},
                    {"kernel keys", kernel.extent(2)}}});
    detail::check_kernel_size("conv", 1, kernel.extent(1), kernel.extent(2), side);
  }
};
template <class T>
conv(tensor_view<T, 3>) -> conv<std::remove_const_t<T>>;
template <class T>
conv(tensor_view<T, 3>, conv_keys) -> conv<std::remove_const_t<T>>;

// Convolution over the ch heads of a group, queries and keys; head h belongs to group h / ch.
template <class T>
struct conv3 {
  tensor_view<const T, 4> kernel;  // [Hq, ch, cq, ck]
  conv_keys side = conv_keys::both;

  // Throws shape_error unless the kernel is [Hq, ch, cq, ck] with ch a divisor of Hq.
  void check(const problem& p) const {
    check_extents("conv3", "kernel", kernel,
                  {{{"query heads", p.Hq},
                    {"heads in a group", kernel.extent(1)},
                    {"kernel queries", kernel.extent(2)},
                    {"kernel keys", kernel.extent(3)}}});
    if (kernel.extent(1) < 1 || p.Hq % kernel.extent(1) != 0) {
      throw_axis_error("conv3", "kernel", 1, "heads in a group", kernel.extent(1),
                       "a divisor of the " + std::to_string(p.Hq) + " query heads");
    }
    detail::check_kernel_size("conv3", 2, kernel.extent(2), kernel.extent(3), side);
  }
};
template <class T>
conv3(tensor_view<T, 4>) -> conv3<std::remove_const_t<T>>;
template <class T>
conv3(tensor_view<T, 4>, conv_keys) -> conv3<std::remove_const_t<T>>;

// A full mix of heads.
template <class T>
struct head_mix {
  tensor_view<const T, 2> matrix;  // [Hq out, Hq in]

  // Throws shape_error unless the matrix is [Hq, Hq].
  void check(const problem& p) const {
    check_extents("head_mix", "matrix", matrix, {{{"heads out", p.Hq}, {"heads in", p.Hq}}});
  }
};
template <class T>
head_mix(tensor_view<T, 2>) -> head_mix<std::remove_const_t<T>>;

// A mix within groups of ch neighbouring heads. Input first, output second: the published order.
template <class T>
struct group_mix {
  tensor_view<const T, 3> matrices;  // [Hq / ch, ch in, ch out]

  // Throws shape_error unless the matrices are square and groups times ch is Hq.
  void check(const problem& p) const {
    const index ch = matrices.extent(1);
    if (ch < 1 || p.Hq % ch != 0) {
      throw_axis_error("group_mix", "matrices", 1, "heads in", ch,
                       "a divisor of the " + std::to_string(p.Hq) + " query heads");
    }
    check_extents("group_mix", "matrices", matrices,
                  {{{"groups", p.Hq / ch}, {"heads in", ch}, {"heads out", ch}}});
  }
};
template <class T>
group_mix(tensor_view<T, 3>) -> group_mix<std::remove_const_t<T>>;

// A stage moved behind the softmax.
template <class Stage>
struct after {
  Stage stage;

  // Throws what the stage throws.
  void check(const problem& p) const { stage.check(p); }
};
template <class Stage>
after(Stage) -> after<Stage>;

// The depth scaling of the Differential Transformer and MTA: lambda_init(layer), layers from 0.
// Ye et al., arXiv 2410.05258.
inline double lambda_init(index layer) {
  return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(layer));
}

// RMSNorm of the output over Dv, per token and head, with one weight for all heads.
template <class T>
struct head_norm {
  tensor_view<const T, 1> weight;  // [Dv]
  double eps = 1e-5;
  double factor = 1;  // 1 - lambda_init(layer) for depth scaling

  // Throws shape_error unless the weight is [Dv] and eps > 0.
  void check(const problem& p) const {
    check_extents("head_norm", "weight", weight, {{{"value head size", p.Dv}}});
    if (!(eps > 0)) {
      throw shape_error("heed: head_norm: eps: is " + std::to_string(eps) + ", expected above 0");
    }
  }
};
template <class T>
head_norm(tensor_view<T, 1>) -> head_norm<std::remove_const_t<T>>;
template <class T>
head_norm(tensor_view<T, 1>, double) -> head_norm<std::remove_const_t<T>>;
template <class T>
head_norm(tensor_view<T, 1>, double, double) -> head_norm<std::remove_const_t<T>>;

// Sigmoid gate on the output, per token and head, with the same weight for all heads: one number
// for the whole head (weight [1, Dv], bias [1]) or one per component (weight [Dv out, Dv in],
// bias [Dv]).
template <class T>
struct head_gate {
  tensor_view<const T, 2> weight;  // [1|Dv, Dv]
  tensor_view<const T, 1> bias;    // as many as weight has rows

  // Throws shape_error unless the weight is [1|Dv, Dv] and bias has as many entries as its rows.
  void check(const problem& p) const {
    check_extents("head_gate", "weight", weight,
                  {{{"gates", p.Dv, true}, {"value head size", p.Dv}}});
    check_extents("head_gate", "bias", bias, {{{"gates", weight.extent(0)}}});
  }
};
template <class T, class U>
head_gate(tensor_view<T, 2>, tensor_view<U, 1>) -> head_gate<std::remove_const_t<T>>;

// A list of stages as one value: mta{conv{kernel}, after{group_mix{heads}}, head_norm{weight}}
// stands for its stages in that order. mta{kernel} and mta{kernel, heads} with kernel [Hq, cq, ck]
// and heads [Hq / ch, ch, ch] are the published pair: convolution before softmax, mix after it.
template <class... Stages>
struct mta {
  std::tuple<Stages...> stages;

  // From the stages, or from the tensor that a stage holds.
  template <class... Parts>
  requires(sizeof...(Parts) == sizeof...(Stages) &&
           !(... && std::is_same_v<Parts, mta>)) explicit mta(const Parts&... parts)
      : stages(Stages{parts}...) {}

  // Throws what the stages throw.
  void check(const problem& p) const {
    std::apply([&](const auto&... stage) { (stage.check(p), ...); }, stages);
  }
};
template <class... Stages>
mta(Stages...) -> mta<Stages...>;
template <class T>
mta(tensor_view<T, 3>) -> mta<conv<std::remove_const_t<T>>>;
template <class T, class U>
mta(tensor_view<T, 3>, tensor_view<U, 3>)
    -> mta<conv<std::remove_const_t<T>>, after<group_mix<std::remove_const_t<U>>>>;

}  // namespace heed::inline HEED_ABI
