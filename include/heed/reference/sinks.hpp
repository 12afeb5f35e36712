// Attention sinks from their equation: mechanisms/sinks.hpp. The softmax adds them up.
#pragma once

#include <cmath>

#include "heed/concepts.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

template <class U>
constexpr place reference_place(const sinks<U>&) {
  return place::logits;
}

// Two lists of sinks in one call both take weight: their exponentials add.
template <class U, class T>
void apply_reference(const sinks<U>& m, state<T>& s) {
  using std::exp;
  using std::log;
  for (index h = 0; h < s.call.Hq; ++h) {
    T& sink = s.sink[static_cast<std::size_t>(h)];
    const T more = static_cast<T>(m.logits(h));
    if (sink == state<T>::minus_infinity) {
      sink = more;
    } else if (more != state<T>::minus_infinity) {
      const T large = sink > more ? sink : more;
      sink = large + log(exp(sink - large) + exp(more - large));
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
