// PaTH from its definition, token by token: mechanisms/path.hpp.
#pragma once

#include <vector>

#include "heed/concepts.hpp"
#include "heed/mechanisms/path.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

template <class U>
constexpr place reference_place(const path<U>&) {
  return place::scores;
}

// x <- H_t x = x - beta_t (w_t . x) w_t, with w and beta of a key head.
template <class U, class T>
void pass_token(const path<U>& m, const state<T>& s, index kv, index t, std::vector<T>& x) {
  const index token = s.seq.first_key + t;
  T along = 0;
  for (index c = 0; c < s.call.D; ++c) {
    along += static_cast<T>(m.w(s.seq.batch, token, kv, c)) * x[static_cast<std::size_t>(c)];
  }
  along *= static_cast<T>(m.beta(s.seq.batch, token, kv));
  for (index c = 0; c < s.call.D; ++c) {
    x[static_cast<std::size_t>(c)] -= along * static_cast<T>(m.w(s.seq.batch, token, kv, c));
  }
}

// Each key is carried forward in time; a row takes the score when the key arrives at its position.
template <class U, class T>
void apply_reference(const path<U>& m, state<T>& s) {
  std::vector<T> x(static_cast<std::size_t>(s.call.D));
  for (index kv = 0; kv < s.call.Hkv; ++kv) {
    for (index j = 0; j < s.seq.S; ++j) {
      for (index c = 0; c < s.call.D; ++c) x[static_cast<std::size_t>(c)] = s.k(kv, j, c);
      for (index t = j; t < s.position(s.seq.T); ++t) {
        if (t > j && t < s.seq.S) pass_token(m, s, kv, t, x);
        const index i = t - s.seq.position;
        if (i < 0) continue;
        for (index h = kv * s.call.group(); h < (kv + 1) * s.call.group(); ++h) {
          s.entries(h, i, j) = s.scale * dot_query(s.q, h, i, s.call.D, [&](index c) {
                                 return x[static_cast<std::size_t>(c)];
                               });
        }
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
