// Learned relative positions from their equation: mechanisms/relative.hpp.
#pragma once

#include "heed/concepts.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

template <class U>
constexpr place reference_place(const relative<U>&) {
  return place::logits;
}

template <class U, class T>
void apply_reference(const relative<U>& m, state<T>& s) {
  const index n = m.embedding.extent(1);
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      for (index j = 0; j < s.seq.S; ++j) {
        const index distance = s.position(i) - j;
        if (!s.visible(h, i, j) || distance < 0) continue;
        if (distance > n - 1 && !m.extend) continue;
        const index column = distance > n - 1 ? 0 : n - 1 - distance;
        s.entries(h, i, j) += s.scale * dot_query(s.caller_q, h, i, s.call.D,
                                                  [&](index c) { return m.embedding(c, column); });
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
