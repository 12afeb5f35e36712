// Attention sinks: a learned logit per head that takes weight and has no value.
//
//   P_ij = exp(L_ij) / (exp(sink_h) + sum_j exp(L_ij))
//
// The log-sum-exp of a row includes the sink; a row that sees no key gives output 0 and log-sum-exp
// sink_h. The sink counts once, however the keys of a row are split up. Cost: nothing per score.
// Xiao et al., arXiv 2309.17453 (the observation); the learned logit is that of gpt-oss.
#pragma once

#include "heed/checks.hpp"
#include "heed/concepts.hpp"

namespace heed::inline HEED_ABI {

template <class T>
struct sinks {
  tensor_view<const T, 1> logits;  // [Hq], natural-log, not scaled

  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::denominator;

  // Throws shape_error unless there is one logit per query head.
  void check(const problem& p) const {
    check_extents("sinks", "logits", logits, {{{"query heads", p.Hq}}});
  }

  T denominator(index head) const noexcept { return logits(head); }
};
template <class T>
sinks(tensor_view<T, 1>) -> sinks<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
