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
  const double scale = factor / std::sqrt(squares / static_cast<double>(n) + eps);
  for (index c = 0; c < n; ++c) {
    x[c] = static_cast<T>(static_cast<double>(x[c]) * scale * static_cast<double>(weight[c]));
  }
}

// The adjoint: x is what rms_norm_row was given, the gradient of what it made of it becomes that of
// x. With `dweight` [n] the gradient of the weight is added there.
template <class T>
inline void rms_norm_row_backward(const T* x, index n, const T* weight, double eps, double factor,
                                  T* gradient, double* dweight) {
  double squares = 0, product = 0;
  for (index c = 0; c < n; ++c) {
    const auto one = static_cast<double>(x[c]);
    squares += one * one;
    product += one * static_cast<double>(weight[c]) * static_cast<double>(gradient[c]);
  }
  const double mean = squares / static_cast<double>(n) + eps;
  const double scale = factor / std::sqrt(mean);
  const double along = product / (mean * static_cast<double>(n));
  for (index c = 0; c < n; ++c) {
    const auto one = static_cast<double>(x[c]), g = static_cast<double>(gradient[c]);
    if (dweight != nullptr) dweight[c] += g * scale * one;
    gradient[c] = static_cast<T>(scale * (g * static_cast<double>(weight[c]) - along * one));
  }
}

// x_c <- x_c sigmoid(gate_c) in whole vectors: x and gate have room for round_up(n, width) numbers.
template <class Arch, class T>
inline void gate_row(T* x, index n, const T* gate) {
  for (index c = 0; c < n; c += width<T, Arch>) {
    store_vec<Arch>(x + c, load_vec<Arch>(x + c) * sigmoid<Arch>(load_vec<Arch>(gate + c)));
  }
}

// The adjoint: the gradient of what gate_row made of x becomes that of x, as far as the gate is
// constant, and gate_c becomes its own gradient.
template <class Arch, class T>
inline void gate_row_backward(const T* x, index n, T* gate, T* gradient) {
  using v = vec<T, Arch>;
  for (index c = 0; c < n; c += width<T, Arch>) {
    const v open = sigmoid<Arch>(load_vec<Arch>(gate + c)), g = load_vec<Arch>(gradient + c);
    store_vec<Arch>(gate + c, g * load_vec<Arch>(x + c) * open * (v(T(1)) - open));
    store_vec<Arch>(gradient + c, g * open);
  }
}

// x_c <- x_c gate_c sigmoid(gate_c) (SiLU of the gate), with room as gate_row's.
template <class Arch, class T>
inline void silu_gate_row(T* x, index n, const T* gate) {
  for (index c = 0; c < n; c += width<T, Arch>) {
    const vec<T, Arch> z = load_vec<Arch>(gate + c);
    store_vec<Arch>(x + c, load_vec<Arch>(x + c) * z * sigmoid<Arch>(z));
  }
}

// The adjoint, as gate_row_backward.
template <class Arch, class T>
inline void silu_gate_row_backward(const T* x, index n, T* gate, T* gradient) {
  using v = vec<T, Arch>;
  for (index c = 0; c < n; c += width<T, Arch>) {
    const v z = load_vec<Arch>(gate + c), open = sigmoid<Arch>(z);
    const v g = load_vec<Arch>(gradient + c);
    store_vec<Arch>(gate + c, g * load_vec<Arch>(x + c) * open * (v(T(1)) + z * (v(T(1)) - open)));
    store_vec<Arch>(gradient + c, g * z * open);
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
