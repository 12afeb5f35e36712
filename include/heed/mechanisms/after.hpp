// A stage of place logits, moved behind the softmax.
#pragma once

#include "heed/concepts.hpp"

namespace heed::inline HEED_ABI {

// after{stage} does to the probabilities what the stage does to the logits. Invisible entries are 0
// again after it; nothing is normalised again. With such a stage every row block is swept twice.
template <class Stage>
struct after : Stage {
  static_assert(Stage::where == place::logits,
                "heed: after takes a mechanism of place logits, to act on probabilities instead");
  static constexpr place where = place::probs;

  const Stage& stage() const noexcept { return *this; }
};
template <class Stage>
after(Stage) -> after<Stage>;

}  // namespace heed::inline HEED_ABI
