// Logit soft-cap from its equation: mechanisms/softcap.hpp.
#pragma once

#include <cmath>

#include "heed/concepts.hpp"
#include "heed/mechanisms/softcap.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

constexpr place reference_place(const softcap&) {
  return place::logits;
}

template <class T>
void apply_reference(const softcap& m, state<T>& s) {
  using std::tanh;
  const T cap = static_cast<T>(m.cap);
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      for (index j = 0; j < s.seq.S; ++j) {
        T& x = s.entries(h, i, j);
        if (x != state<T>::minus_infinity) x = cap * tanh(x / cap);
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
