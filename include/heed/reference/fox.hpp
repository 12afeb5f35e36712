// FoX from its definition: mechanisms/fox.hpp. Nothing is pruned here.
#pragma once

#include "heed/concepts.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

template <class U>
constexpr place reference_place(const fox<U>&) {
  return place::logits;
}

// Walks from the row's own token to older keys, adding up gates on the way: a key gets the gates
// between itself and the row and no others, and log f = -inf cuts off all that is older.
template <class U, class T>
void apply_reference(const fox<U>& m, state<T>& s) {
  const T factor = m.convention == gate::inside_scale ? s.scale : T(1);
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      T decay = 0;
      const index newest = s.position(i) < s.seq.S ? s.position(i) : s.seq.S - 1;
      for (index j = newest; j >= 0; --j) {
        s.entries(h, i, j) += factor * decay;
        decay += static_cast<T>(m.log_f(s.seq.batch, s.seq.first_key + j, h));
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
