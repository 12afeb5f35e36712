// ALiBi from its equation: mechanisms/alibi.hpp.
#pragma once

#include <cmath>

#include "heed/concepts.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

constexpr place reference_place(const alibi&) {
  return place::logits;
}

// The published slope of head h of `heads`: with n the largest power of two <= heads, the slopes
// for n heads, then those for 2n heads at even places.
template <class T>
T alibi_slope(index h, index heads) {
  using std::pow;
  index n = 1;
  while (n * 2 <= heads) n *= 2;
  if (h < n) return pow(T(2), T(-8) * T(h + 1) / T(n));
  const index even = 2 * (h - n);
  return pow(T(2), T(-8) * T(even + 1) / T(2 * n));
}

template <class T>
void apply_reference(const alibi& m, state<T>& s) {
  for (index h = 0; h < s.call.Hq; ++h) {
    const T slope = m.slopes.empty() ? alibi_slope<T>(h, s.call.Hq)
                                     : static_cast<T>(m.slopes[static_cast<std::size_t>(h)]);
    for (index i = 0; i < s.seq.T; ++i) {
      for (index j = 0; j < s.seq.S; ++j) s.entries(h, i, j) += slope * T(j - s.position(i));
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
