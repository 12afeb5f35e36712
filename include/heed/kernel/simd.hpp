// The only file that knows which xsimd this is. Everything that touches a vector takes the
// architecture as a template parameter, so that two translation units built for different
// instruction sets never share a function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

// gcc 12 reports its own AVX-512 intrinsics as reading what is not initialized (gcc PR 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <xsimd/xsimd.hpp>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "heed/config.hpp"

#if defined(__GNUC__) || defined(__clang__)
#define HEED_INLINE inline __attribute__((always_inline))
#define HEED_INLINE_LAMBDA __attribute__((always_inline))
#define HEED_NOINLINE __attribute__((noinline))
#else
#define HEED_INLINE inline
#define HEED_INLINE_LAMBDA
#define HEED_NOINLINE
#endif

namespace heed::inline HEED_ABI::kernel {

using default_arch = xsimd::default_arch;

template <class T, class Arch>
using vec = xsimd::batch<T, Arch>;

// Elements in one vector.
template <class T, class Arch>
inline constexpr index width = static_cast<index>(vec<T, Arch>::size);

// Whether the instruction set fuses multiply and add with one rounding.
template <class Arch>
inline constexpr bool has_fma =
    std::is_base_of_v<xsimd::avx512f, Arch> || std::is_base_of_v<xsimd::neon64, Arch> ||
    std::is_base_of_v<xsimd::fma3<xsimd::avx2>, Arch> ||
    std::is_base_of_v<xsimd::fma3<xsimd::avx>, Arch> ||
    std::is_base_of_v<xsimd::fma3<xsimd::sse4_2>, Arch>;

// 32 vector registers instead of 16.
template <class Arch>
inline constexpr bool has_32_registers =
    std::is_base_of_v<xsimd::avx512f, Arch> || std::is_base_of_v<xsimd::neon64, Arch>;

constexpr index round_up(index n, index step) {
  return (n + step - 1) / step * step;
}

// f(0), f(1) ... f(N - 1), each with its number as a compile-time constant: unrolled at any
// optimisation level, so that arrays of vectors live in registers.
template <int N, class F>
HEED_INLINE void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) HEED_INLINE_LAMBDA {
    (f(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

// a b + c, rounded once where has_fma says so. (xsimd 8 multiplies and adds on AVX-512, which only
// some compilers make one instruction of.)
template <class T, class Arch>
HEED_INLINE vec<T, Arch> multiply_add(const vec<T, Arch>& a, const vec<T, Arch>& b,
                                      const vec<T, Arch>& c) {
#if defined(__AVX512F__)
  if constexpr (std::is_base_of_v<xsimd::avx512f, Arch> && std::is_same_v<T, float>) {
    return vec<T, Arch>(_mm512_fmadd_ps(a, b, c));
  } else if constexpr (std::is_base_of_v<xsimd::avx512f, Arch> && std::is_same_v<T, double>) {
    return vec<T, Arch>(_mm512_fmadd_pd(a, b, c));
  } else
#endif
    return xsimd::fma(a, b, c);
}

template <class Arch, class T>
HEED_INLINE vec<T, Arch> load_vec(const T* p) {
  return vec<T, Arch>::load_unaligned(p);
}
template <class Arch, class T>
HEED_INLINE void store_vec(T* p, const vec<T, Arch>& v) {
  v.store_unaligned(p);
}

// Asks for the cache line of p; any address will do.
HEED_INLINE void prefetch(const void* p) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(p);
#else
  static_cast<void>(p);
#endif
}

// The same into the second-level cache only, which waits for more lines at a time.
HEED_INLINE void prefetch_far(const void* p) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(p, 0, 2);
#else
  static_cast<void>(p);
#endif
}

// The same for a line that will be written.
HEED_INLINE void prefetch_to_write(const void* p) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(p, 1);
#else
  static_cast<void>(p);
#endif
}

// xsimd's min and max, out of reach of function-like macros of the same names.
// NaN in the second argument of larger comes through; in the first it may be lost.
template <class T, class Arch>
HEED_INLINE vec<T, Arch> larger(const vec<T, Arch>& a, const vec<T, Arch>& b) {
  return (xsimd::max)(a, b);
}
template <class T, class Arch>
HEED_INLINE vec<T, Arch> smaller(const vec<T, Arch>& a, const vec<T, Arch>& b) {
  return (xsimd::min)(a, b);
}

// Signed integer of the same size.
template <class T>
using integer_of = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

// The same bits as another type. xsimd up to 8 names the target vector, later ones its element.
template <class To, class T, class Arch>
HEED_INLINE vec<To, Arch> bits_as(const vec<T, Arch>& v) {
  if constexpr (requires {
                  { xsimd::bitwise_cast<To>(v) } -> std::same_as<vec<To, Arch>>;
                }) {
    return xsimd::bitwise_cast<To>(v);
  } else {
    return xsimd::bitwise_cast<vec<To, Arch>>(v);
  }
}

// The compilers' own shuffle: xsimd's differ between its versions.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HEED_HAS_SHUFFLE 1
#endif
#endif

#if defined(HEED_HAS_SHUFFLE)
// Lanes Lane(0), Lane(1) ... of a followed by b, where lane numbers from the width on mean b.
template <class Lane, class T, class Arch>
HEED_INLINE vec<T, Arch> shuffle(const vec<T, Arch>& a, const vec<T, Arch>& b, Lane) {
  return [&]<int... I>(std::integer_sequence<int, I...>) HEED_INLINE_LAMBDA {
    return vec<T, Arch>(__builtin_shufflevector(a.data, b.data, Lane{}(I)...));
  }
  (std::make_integer_sequence<int, static_cast<int>(vec<T, Arch>::size)>{});
}

// The lower or upper halves of a and b, alternating: a0 b0 a1 b1 ...
template <bool Upper, class T, class Arch>
HEED_INLINE vec<T, Arch> interleave(const vec<T, Arch>& a, const vec<T, Arch>& b) {
  constexpr int n = static_cast<int>(vec<T, Arch>::size);
  return shuffle(
      a, b, [](int i) constexpr { return i / 2 + (Upper ? n / 2 : 0) + i % 2 * n; });
}
#endif

// join(... join(lane 0, lane n / 2) ...): the lanes folded in halves.
template <class T, class Arch, class Join>
HEED_INLINE T fold_lanes(vec<T, Arch> v, Join&& join) {
  constexpr int n = static_cast<int>(vec<T, Arch>::size);
#if defined(HEED_HAS_SHUFFLE)
  if constexpr (n >= 16)
    v = join(v, shuffle(
                    v, v, [](int i) constexpr { return (i + 8) % n; }));
  if constexpr (n >= 8)
    v = join(v, shuffle(
                    v, v, [](int i) constexpr { return (i + 4) % n; }));
  if constexpr (n >= 4)
    v = join(v, shuffle(
                    v, v, [](int i) constexpr { return (i + 2) % n; }));
  if constexpr (n >= 2)
    v = join(v, shuffle(
                    v, v, [](int i) constexpr { return (i + 1) % n; }));
  T lanes[n];
  v.store_unaligned(lanes);
  return lanes[0];
#else
  T lanes[n], other[n];
  for (int half = n / 2; half > 0; half /= 2) {
    v.store_unaligned(lanes);
    for (int i = 0; i < n; ++i) other[i] = lanes[(i + half) % n];
    v = join(v, vec<T, Arch>::load_unaligned(other));
  }
  v.store_unaligned(lanes);
  return lanes[0];
#endif
}

template <class T, class Arch>
HEED_INLINE T sum_lanes(const vec<T, Arch>& v) {
  using batch = vec<T, Arch>;
  return fold_lanes(v, [](const batch& a, const batch& b) HEED_INLINE_LAMBDA { return a + b; });
}
// Where a lane is NaN: NaN or the largest of some others.
template <class T, class Arch>
HEED_INLINE T largest_lane(const vec<T, Arch>& v) {
  using batch = vec<T, Arch>;
  return fold_lanes(v,
                    [](const batch& a, const batch& b) HEED_INLINE_LAMBDA { return larger(a, b); });
}

// AVX-512 takes a float apart in one instruction each way.
template <class T, class Arch>
inline constexpr bool has_scalef =
    std::is_base_of_v<xsimd::avx512dq, Arch>&& std::is_same_v<T, float>;

#if defined(__AVX512DQ__)
// y - floor(y); 0 at -inf.
template <class Arch>
HEED_INLINE vec<float, Arch> above_floor(const vec<float, Arch>& y) {
  return vec<float, Arch>(_mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
}
// p 2^floor(y); 0 where that is below the normal numbers.
template <class Arch>
HEED_INLINE vec<float, Arch> times_power(const vec<float, Arch>& p, const vec<float, Arch>& y) {
  const __mmask16 normal = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return vec<float, Arch>(_mm512_maskz_scalef_ps(normal, p, y));
}
#endif

template <class Arch, class T>
HEED_INLINE vec<T, Arch> lane_numbers() {
  alignas(64) T lanes[vec<T, Arch>::size];
  for (std::size_t i = 0; i < vec<T, Arch>::size; ++i) lanes[i] = static_cast<T>(i);
  return vec<T, Arch>::load_aligned(lanes);
}

// Row[from, to) = value, in whole vectors counted from the start of the row, so that the vector
// loads that follow need not wait for many small stores. Rewrites, as they are, the elements that
// share a vector with an end: those must be readable and writable.
template <class Arch, class T>
HEED_INLINE void fill_columns(T* row, index from, index to, T value) {
  using v = vec<T, Arch>;
  constexpr index w = width<T, Arch>;
  for (index c = from / w * w; c < to; c += w) {
    if (c >= from && c + w <= to) {
      store_vec<Arch>(row + c, v(value));
    } else {
      const v lane = lane_numbers<Arch, T>();
      const auto inside =
          (lane >= v(static_cast<T>(from - c))) & (lane < v(static_cast<T>(to - c)));
      store_vec<Arch>(row + c, xsimd::select(inside, v(value), load_vec<Arch>(row + c)));
    }
  }
}

}  // namespace heed::inline HEED_ABI::kernel
