// MTA: multi-token attention, as stages that can be used alone.
//
//   conv, conv3             key-query convolution of the logits            conv.hpp
//   head_mix, group_mix     heads that mix                                 head_mix.hpp
//   after<...>              the same on the probabilities, after softmax   after.hpp
//   head_norm, head_gate    norm and gate of the output                    head_norm.hpp
//
// Kernels start as the identity or at random: kernel_init.hpp. A stage whose tensor is a default
// view is not there and costs nothing, so that one list serves layers with and without it.
// Cost: with any stage after softmax the logits are computed twice, but for those that fit some
// megabytes (options.hpp, tuning); nothing of size T x S exists.
// Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
#pragma once

#include <tuple>

#include "heed/mechanisms/after.hpp"
#include "heed/mechanisms/conv.hpp"
#include "heed/mechanisms/head_mix.hpp"
#include "heed/mechanisms/head_norm.hpp"
#include "heed/mechanisms/kernel_init.hpp"

namespace heed::inline HEED_ABI {

// A list of stages as one value: mta{conv{kernel}, after{group_mix{heads}}, head_norm{weight}}
// stands for its stages in that order. mta{kernel} and mta{kernel, heads} with kernel [Hq, cq, ck]
// and heads [Hq / ch, ch, ch] are the published pair: convolution before softmax, mix after it.
template <class... Stages>
class mta {
 public:
  // From the stages, or from the tensor that a stage holds.
  template <class... Parts>
  requires(sizeof...(Parts) == sizeof...(Stages) &&
           !(... && std::is_same_v<Parts, mta>)) explicit mta(const Parts&... parts)
      : list_(Stages{parts}...) {}

  const std::tuple<Stages...>& stages() const noexcept { return list_; }

 private:
  std::tuple<Stages...> list_;
};
template <class... Stages>
mta(Stages...) -> mta<Stages...>;
template <class T>
mta(tensor_view<T, 3>) -> mta<conv<std::remove_const_t<T>>>;
template <class T, class U>
mta(tensor_view<T, 3>, tensor_view<U, 3>)
    -> mta<conv<std::remove_const_t<T>>, after<group_mix<std::remove_const_t<U>>>>;

}  // namespace heed::inline HEED_ABI
