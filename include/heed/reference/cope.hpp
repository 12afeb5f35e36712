// CoPE from its definition: mechanisms/cope.hpp.
#pragma once

#include <cmath>
#include <vector>

#include "heed/concepts.hpp"
#include "heed/mechanisms/cope.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

template <class U>
constexpr place reference_place(const cope<U>&) {
  return place::logits;
}

// x_ij, what the gate of a visible key reads.
template <class U, class T>
T gate_logit(const cope<U>& m, const state<T>& s, index h, index i, index j) {
  const index kv = s.kv_head(h), D = s.call.D;
  if (m.gates == cope_gates::keys) return s.entries(h, i, j);
  const T product = dot_query(s.caller_q, h, i, D, [&](index c) {
    return m.gates == cope_gates::values
               ? s.v(kv, j, c)
               : static_cast<T>(m.gate_keys(s.seq.batch, s.seq.first_key + j, kv, c));
  });
  return s.scale * product;
}

// z at a position p in [0, npos - 1], linear between its neighbours.
template <class T>
T interpolate(const std::vector<T>& z, T p) {
  using std::ceil;
  using std::floor;
  if (!(p == p)) return p;
  const T f = p - floor(p);
  return (T(1) - f) * z[static_cast<std::size_t>(floor(p))] +
         f * z[static_cast<std::size_t>(ceil(p))];
}

template <class U, class T>
void apply_reference(const cope<U>& m, state<T>& s) {
  using std::exp;
  const index npos = m.embedding.extent(2);
  const T factor = m.scale == cope_scale::divided ? s.scale : T(1);
  std::vector<T> z(static_cast<std::size_t>(npos));
  for (index h = 0; h < s.call.Hq; ++h) {
    const index table = m.embedding.extent(0) == 1 ? 0 : h;
    for (index i = 0; i < s.seq.T; ++i) {
      for (index n = 0; n < npos; ++n) {
        z[static_cast<std::size_t>(n)] = dot_query(
            s.caller_q, h, i, s.call.D, [&](index c) { return m.embedding(table, c, n); });
      }
      T counted = 0;
      for (index j = s.seq.S - 1; j >= 0; --j) {
        if (!s.visible(h, i, j)) continue;
        counted += T(1) / (T(1) + exp(-gate_logit(m, s, h, i, j)));
        const T p = counted > T(npos - 1) ? T(npos - 1) : counted;
        s.entries(h, i, j) += factor * interpolate(z, p);
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
