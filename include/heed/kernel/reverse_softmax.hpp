// From logits and the gradient of the probabilities to probabilities and the gradient of the
// logits.
#pragma once

#include "heed/kernel/math.hpp"

namespace heed::inline HEED_ABI::kernel {

// exp(x - lse) on N vectors in step.
template <class Arch, int N, class T>
struct exponentials {
  using c = exp_constants<T>;
  using v = vec<T, Arch>;

  // `shift` is -lse log2(e) where the instruction set scales by powers of two, else -lse.
  static v shift_of(T lse) {
    if constexpr (has_scalef<T, Arch>) return v(-lse * c::log2_e);
    return v(-lse);
  }
  static HEED_INLINE void of(const T* x, const v& shift, v (&p)[N]) {
    constexpr index w = width<T, Arch>;
    const auto each = [&](auto&& f) HEED_INLINE_LAMBDA { unroll<N>(f); };
    if constexpr (has_scalef<T, Arch>) {
      constexpr int terms = static_cast<int>(std::extent_v<decltype(c::power_series)>);
      v octaves[N], part[N];
      each([&](auto i) HEED_INLINE_LAMBDA {
        octaves[i] = multiply_add(load_vec<Arch>(x + i * w), v(c::log2_e), shift);
      });
      each([&](auto i) HEED_INLINE_LAMBDA { part[i] = above_floor<Arch>(octaves[i]); });
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = v(c::power_series[0]); });
      unroll<terms - 1>([&](auto k) HEED_INLINE_LAMBDA {
        each([&](auto i) HEED_INLINE_LAMBDA {
          p[i] = multiply_add(p[i], part[i], v(c::power_series[k + 1]));
        });
      });
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = times_power<Arch>(p[i], octaves[i]); });
    } else {
      each([&](auto i) HEED_INLINE_LAMBDA {
        p[i] = exp_negative<Arch>(load_vec<Arch>(x + i * w) + shift);
      });
    }
  }
};

// f(N, column) in steps of four vectors, then of one, up to cols rounded up.
template <class T, class Arch, class F>
HEED_INLINE void in_fours(index cols, F&& f) {
  constexpr index w = width<T, Arch>;
  index c = 0;
  for (; c + 4 * w <= round_up(cols, w); c += 4 * w) f(std::integral_constant<int, 4>{}, c);
  for (; c < cols; c += w) f(std::integral_constant<int, 1>{}, c);
}

// What a row's logits are measured against: its log-sum-exp; 0 for a row that sees nothing, whose
// logits are all -inf.
template <class T>
T reference_of(T lse) {
  return lse == -std::numeric_limits<T>::infinity() ? T(0) : lse;
}

// Probabilities: x <- exp(x - lse[row]), [rows x cols] with row stride ld. Columns up to
// round_up(cols, width) are overwritten.
template <class Arch, class T>
inline void probabilities_strip(T* x, index ld, index rows, index cols, const T* lse) {
  constexpr index w = width<T, Arch>;
  for (index r = 0; r < rows; ++r) {
    T* line = x + r * ld;
    const vec<T, Arch> shift = exponentials<Arch, 1, T>::shift_of(reference_of(lse[r]));
    in_fours<T, Arch>(cols, [&](auto n, index c) HEED_INLINE_LAMBDA {
      constexpr int N = decltype(n)::value;
      vec<T, Arch> p[N];
      exponentials<Arch, N, T>::of(line + c, shift, p);
      unroll<N>([&](auto i) HEED_INLINE_LAMBDA { store_vec<Arch>(line + c + i * w, p[i]); });
    });
  }
}

// dL = P (dP - delta), where the weight is 0 exactly 0: dp <- dl. p is what probabilities_strip
// made.
template <class Arch, class T>
inline void softmax_backward_strip(const T* p, T* dp, index ld, index rows, index cols,
                                   const T* delta) {
  using v = vec<T, Arch>;
  for (index r = 0; r < rows; ++r, p += ld, dp += ld) {
    const v mean(delta[r]);
    for (index c = 0; c < cols; c += width<T, Arch>) {
      const v weight = load_vec<Arch>(p + c);
      store_vec<Arch>(dp + c, xsimd::select(weight == v(T(0)), v(T(0)),
                                            weight * (load_vec<Arch>(dp + c) - mean)));
    }
  }
}

// Both in one pass.
template <class Arch, class T>
inline void softmax_both_strip(T* x, T* dp, index ld, index rows, index cols, const T* lse,
                               const T* delta) {
  using v = vec<T, Arch>;
  constexpr index w = width<T, Arch>;
  for (index r = 0; r < rows; ++r, x += ld, dp += ld) {
    const v shift = exponentials<Arch, 1, T>::shift_of(reference_of(lse[r]));
    const v mean(delta[r]);
    in_fours<T, Arch>(cols, [&](auto n, index c) HEED_INLINE_LAMBDA {
      constexpr int N = decltype(n)::value;
      v p[N];
      exponentials<Arch, N, T>::of(x + c, shift, p);
      unroll<N>([&](auto i) HEED_INLINE_LAMBDA {
        store_vec<Arch>(x + c + i * w, p[i]);
        const v dl = p[i] * (load_vec<Arch>(dp + c + i * w) - mean);
        store_vec<Arch>(dp + c + i * w, xsimd::select(p[i] == v(T(0)), v(T(0)), dl));
      });
    });
  }
}

// Both where all that a row sees is at hand. The caller's log-sum-exp and output are rounded, and
// so is what they say about the row's sums: here these are taken again, in double, so that the
// row's gradients cancel as they do in exact arithmetic. dlse: the gradient of the log-sum-exp.
template <class Arch, class T>
inline void softmax_whole_strip(T* x, T* dp, index ld, index rows, index cols, const T* lse,
                                const T* dlse) {
  constexpr index lanes = 8;
  probabilities_strip<Arch>(x, ld, rows, cols, lse);
  for (index r = 0; r < rows; ++r, x += ld, dp += ld) {
    double weights[lanes] = {}, products[lanes] = {};
    const auto add = [&](index c, index lane) {
      weights[lane] += static_cast<double>(x[c]);
      if (x[c] != 0) products[lane] += static_cast<double>(x[c]) * static_cast<double>(dp[c]);
    };
    index c = 0;
    for (; c + lanes <= cols; c += lanes) {
      for (index lane = 0; lane < lanes; ++lane) add(c + lane, lane);
    }
    for (; c < cols; ++c) add(c, 0);
    double weight = 0, product = 0;
    for (index lane = 0; lane < lanes; ++lane) {
      weight += weights[lane];
      product += products[lane];
    }
    const double scale = weight == 0 ? 0 : 1 / weight;
    const double mean = product * scale - static_cast<double>(dlse[r]);
    for (c = 0; c < cols; ++c) {
      const double p = static_cast<double>(x[c]) * scale;
      dp[c] = x[c] == 0 ? T(0) : static_cast<T>(p * (static_cast<double>(dp[c]) - mean));
      x[c] = static_cast<T>(p);
    }
  }
}

// sum over j of p dp, added to delta[row].
template <class Arch, class T>
inline void add_row_products(const T* p, const T* dp, index ld, index rows, index cols, T* delta) {
  constexpr index w = width<T, Arch>;
  for (index r = 0; r < rows; ++r, p += ld, dp += ld) {
    vec<T, Arch> sum(T(0));
    index c = 0;
    for (; c + w <= cols; c += w)
      sum = multiply_add(load_vec<Arch>(p + c), load_vec<Arch>(dp + c), sum);
    T rest = 0;
    for (; c < cols; ++c) rest += p[c] * dp[c];
    delta[r] += sum_lanes(sum) + rest;
  }
}

}  // namespace heed::inline HEED_ABI::kernel
