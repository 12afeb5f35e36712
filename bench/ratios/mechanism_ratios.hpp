// A mechanism's time over plain softmax's.
#pragma once

#include "ratios.hpp"

namespace ratios {

// Causal, the same shape, one thread, in turns.
template <class... Mechanisms>
double against_softmax(problem& p, const Mechanisms&... mechanisms) {
  return time_ratio([&] { p.attend(heed::causal(), mechanisms...); },
                    [&] { p.attend(heed::causal()); });
}

}  // namespace ratios
