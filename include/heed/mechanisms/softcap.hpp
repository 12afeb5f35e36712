// Logit soft-cap.
//
//   L_ij <- cap tanh(L_ij / cap)
//
// on logits that are already scaled; a logit of -inf stays -inf, so that no cap brings back what a
// bias or a gate has hidden. Cost: one tanh per score.
// Gemma Team, Gemma 2, arXiv 2408.00118.
#pragma once

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

struct softcap {
  double cap = 30;

  // Throws shape_error unless cap > 0.
  void check(const problem&) const {
    if (!(cap > 0)) {
      throw shape_error("heed: softcap: cap: is " + std::to_string(cap) + ", expected above 0");
    }
  }
};

}  // namespace heed::inline HEED_ABI
