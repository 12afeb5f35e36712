// MTA's stages from their equations: mechanisms/mta.hpp.
#pragma once

#include <cmath>
#include <vector>

#include "heed/mechanisms/mta.hpp"
#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

// Entry (h, i, j) becomes next(h, i, j), computed from all the old ones.
template <class T, class Next>
void replace_entries(state<T>& s, const Next& next) {
  table<T> replaced(s.call.Hq, s.seq.T, s.seq.S);
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      for (index j = 0; j < s.seq.S; ++j) {
        if (s.visible(h, i, j)) replaced(h, i, j) = next(h, i, j);
      }
    }
  }
  s.entries = replaced;
}

// sum over a, b of kernel(a, b) Z_h[i - (cq-1) + a, j - b0 + b]; out of range is 0.
template <class T, class Kernel>
T correlate(const state<T>& s, const Kernel& kernel, index cq, index ck, conv_keys side, index h,
            index i, index j) {
  const index b0 = side == conv_keys::left ? ck - 1 : side == conv_keys::right ? 0 : (ck - 1) / 2;
  T sum = 0;
  for (index a = 0; a < cq; ++a) {
    const index row = i - (cq - 1) + a;
    if (row < 0) continue;
    for (index b = 0; b < ck; ++b) {
      const index column = j - b0 + b;
      if (column < 0 || column >= s.seq.S) continue;
      sum += static_cast<T>(kernel(a, b)) * read_entry(s, h, row, column);
    }
  }
  return sum;
}

template <class U, class T>
void apply_reference(const conv<U>& m, state<T>& s) {
  replace_entries(s, [&](index h, index i, index j) {
    return correlate(
        s, [&](index a, index b) { return m.kernel(h, a, b); }, m.kernel.extent(1),
        m.kernel.extent(2), m.side, h, i, j);
  });
}

template <class U, class T>
void apply_reference(const conv3<U>& m, state<T>& s) {
  const index ch = m.kernel.extent(1);
  replace_entries(s, [&](index h, index i, index j) {
    T sum = 0;
    for (index r = 0; r < ch; ++r) {
      sum += correlate(
          s, [&](index a, index b) { return m.kernel(h, r, a, b); }, m.kernel.extent(2),
          m.kernel.extent(3), m.side, h / ch * ch + r, i, j);
    }
    return sum;
  });
}

template <class U, class T>
void apply_reference(const head_mix<U>& m, state<T>& s) {
  replace_entries(s, [&](index out, index i, index j) {
    T sum = 0;
    for (index in = 0; in < s.call.Hq; ++in) {
      sum += static_cast<T>(m.matrix(out, in)) * read_entry(s, in, i, j);
    }
    return sum;
  });
}

template <class U, class T>
void apply_reference(const group_mix<U>& m, state<T>& s) {
  const index ch = m.matrices.extent(1);
  replace_entries(s, [&](index h, index i, index j) {
    T sum = 0;
    for (index r = 0; r < ch; ++r) {
      sum += static_cast<T>(m.matrices(h / ch, r, h % ch)) * read_entry(s, h / ch * ch + r, i, j);
    }
    return sum;
  });
}

template <class Stage, class T>
void apply_reference(const after<Stage>& m, state<T>& s) {
  apply_reference(m.stage(), s);
}

template <class U, class T>
void apply_reference(const head_norm<U>& m, state<T>& s) {
  using std::sqrt;
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      T squares = 0;
      for (index c = 0; c < s.call.Dv; ++c) squares += s.out(h, i, c) * s.out(h, i, c);
      const T norm = sqrt(squares / T(s.call.Dv) + T(m.eps));
      for (index c = 0; c < s.call.Dv; ++c) {
        s.out(h, i, c) = T(m.factor) * s.out(h, i, c) / norm * static_cast<T>(m.weight(c));
      }
    }
  }
}

template <class U, class T>
void apply_reference(const head_gate<U>& m, state<T>& s) {
  using std::exp;
  std::vector<T> gates(static_cast<std::size_t>(m.weight.extent(0)));
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      for (index g = 0; g < m.weight.extent(0); ++g) {
        const T x = dot_query(s.out, h, i, s.call.Dv, [&](index c) { return m.weight(g, c); }) +
                    static_cast<T>(m.bias(g));
        gates[static_cast<std::size_t>(g)] = T(1) / (T(1) + exp(-x));
      }
      for (index c = 0; c < s.call.Dv; ++c) {
        s.out(h, i, c) *= gates[static_cast<std::size_t>(gates.size() == 1 ? 0 : c)];
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
