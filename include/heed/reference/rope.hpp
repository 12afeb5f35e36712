// RoPE from its equation: mechanisms/rope.hpp.
#pragma once

#include <cmath>

#include "heed/concepts.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

constexpr place reference_place(const rope&) {
  return place::inputs;
}

// Turns the pairs of x(head, token, .), a token that stands at `position`.
template <class T>
void rotate(const rope& m, table<T>& x, index head, index token, index position, index D) {
  using std::cos;
  using std::pow;
  using std::sin;
  const index R = m.rotary_dim == 0 ? D : m.rotary_dim;
  for (index n = 0; n < R / 2; ++n) {
    const T frequency = pow(T(m.theta), T(-2 * n) / T(R));
    const T phi = T(position + m.offset) * frequency;
    const bool neighbours = m.pairs == rope_pairs::interleaved;
    T& first = x(head, token, neighbours ? 2 * n : n);
    T& second = x(head, token, neighbours ? 2 * n + 1 : n + R / 2);
    const T a = first, b = second;
    first = a * cos(phi) - b * sin(phi);
    second = a * sin(phi) + b * cos(phi);
  }
}

template <class T>
void apply_reference(const rope& m, state<T>& s) {
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) rotate(m, s.q, h, i, s.position(i), s.call.D);
  }
  for (index h = 0; h < s.call.Hkv; ++h) {
    for (index j = 0; j < s.seq.S; ++j) rotate(m, s.k, h, j, j, s.call.D);
  }
}

}  // namespace heed::inline HEED_ABI::reference
