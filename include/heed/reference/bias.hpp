// Additive bias from its equation: mechanisms/bias.hpp.
#pragma once

#include "heed/concepts.hpp"
#include "heed/mechanisms/bias.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

template <class U>
constexpr place reference_place(const bias<U>&) {
  return place::logits;
}

template <class U, class T>
void apply_reference(const bias<U>& m, state<T>& s) {
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      for (index j = 0; j < s.seq.S; ++j) {
        s.entries(h, i, j) += static_cast<T>(
            broadcast(m.values, s.seq.batch, h, s.seq.first_query + i, s.seq.first_key + j));
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
