// Plain attention: scaled dot products, softmax, weighted sum of values.
#pragma once

#include <cmath>

#include "heed/reference/state.hpp"

namespace heed::inline HEED_ABI::reference {

// L_ij = scale <q_i, k_j>, what a stage of place scores replaces.
template <class T>
void dot_products(state<T>& s) {
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      for (index j = 0; j < s.seq.S; ++j) {
        if (!s.visible(h, i, j)) continue;
        s.entries(h, i, j) = s.scale * dot_query(s.q, h, i, s.call.D,
                                                 [&](index c) { return s.k(s.kv_head(h), j, c); });
      }
    }
  }
}

// Row i of head h: P_ij = exp(L_ij) / (exp(sink) + sum_j exp(L_ij)). A row of nothing but -inf sees
// no key: it becomes invisible, and its log-sum-exp is that of the sink. NaN and +inf give NaN.
template <class T>
void softmax_row(state<T>& s, index h, index i) {
  using std::exp;
  using std::log;
  const T sink = s.sink[static_cast<std::size_t>(h)];
  T largest = sink;
  bool empty = true;
  for (index j = 0; j < s.seq.S; ++j) {
    const T x = s.entries(h, i, j);
    if (!s.visible(h, i, j) || x == state<T>::minus_infinity) continue;
    empty = false;
    if (x > largest) largest = x;
  }
  if (empty) {
    for (index j = 0; j < s.seq.S; ++j) {
      s.visible(h, i, j) = false;
      s.entries(h, i, j) = 0;
    }
    s.lse(0, h, i) = sink;
    return;
  }
  T sum = sink == state<T>::minus_infinity ? T(0) : exp(sink - largest);
  for (index j = 0; j < s.seq.S; ++j) {
    T& x = s.entries(h, i, j);
    x = s.visible(h, i, j) ? exp(x - largest) : T(0);
    sum += x;
  }
  for (index j = 0; j < s.seq.S; ++j) {
    if (s.visible(h, i, j)) s.entries(h, i, j) /= sum;
  }
  s.lse(0, h, i) = largest + log(sum);
}

template <class T>
void softmax(state<T>& s) {
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) softmax_row(s, h, i);
  }
}

// out_i = sum over visible j of P_ij v_j.
template <class T>
void weighted_values(state<T>& s) {
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      for (index j = 0; j < s.seq.S; ++j) {
        if (!s.visible(h, i, j)) continue;
        for (index c = 0; c < s.call.Dv; ++c) {
          s.out(h, i, c) += s.entries(h, i, j) * s.v(s.kv_head(h), j, c);
        }
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
