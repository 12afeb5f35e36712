// What norms and gates do to one row, for the output stages and the layers.
#pragma once

#include <cmath>

#include "heed/kernel/math.hpp"

namespace heed::inline HEED_ABI::kernel {

// x <- factor x / sqrt(mean(x^2) + eps) weight, n numbers; weight[c] at weight[c]. The mean is
// taken in double.
template <class T>
inline void rms_norm_row(T* x, index n, const T* weight, double eps, double factor) {
  double squares = 0;
  for (index c = 0; c < n; ++c) squares += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  const T scale = static_cast<T>(factor / std::sqrt(squares / static_cast<double>(n) + eps));
  for (index c = 0; c < n; ++c) x[c] *= scale * weight[c];
}

// x_c <- x_c sigmoid(gate_c) in whole vectors: x and gate have room for round_up(n, width) numbers.
template <class Arch, class T>
inline void gate_row(T* x, index n, const T* gate) {
  for (index c = 0; c < n; c += width<T, Arch>) {
    store_vec<Arch>(x + c, load_vec<Arch>(x + c) * sigmoid<Arch>(load_vec<Arch>(gate + c)));
  }
}

// <a, b> over n numbers, summed in double.
template <class T>
inline T dot_row(const T* a, const T* b, index n) {
  double sum = 0;
  for (index c = 0; c < n; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return static_cast<T>(sum);
}

}  // namespace heed::inline HEED_ABI::kernel
