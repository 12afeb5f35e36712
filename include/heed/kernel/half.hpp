// bfloat16 and float16 to float and back, a vector at a time: the same bits as the scalar
// conversions of half.hpp, with and without instructions made for it.
#pragma once

#include <cstring>

#include "heed/half.hpp"
#include "heed/kernel/simd.hpp"

namespace heed::inline HEED_ABI::kernel {

#if defined(HEED_HAS_SHUFFLE)
// The compilers' own vectors of so many lanes: they convert between element sizes with the best
// instructions of every instruction set. Spelled out, since gcc does not take a lane count that is
// a template parameter.
template <int Lanes>
struct half_vectors;
#define HEED_HALF_VECTORS(LANES)                                           \
  template <>                                                              \
  struct half_vectors<LANES> {                                             \
    typedef std::uint16_t halves __attribute__((vector_size(2 * LANES)));  \
    typedef std::uint32_t words __attribute__((vector_size(4 * LANES)));   \
    typedef std::int32_t integers __attribute__((vector_size(4 * LANES))); \
    typedef float floats __attribute__((vector_size(4 * LANES)));          \
    static HEED_INLINE void convert(const halves& from, words& to) {       \
      to = __builtin_convertvector(from, words);                           \
    }                                                                      \
    static HEED_INLINE void convert(const words& from, halves& to) {       \
      to = __builtin_convertvector(from, halves);                          \
    }                                                                      \
  }
HEED_HALF_VECTORS(4);
HEED_HALF_VECTORS(8);
HEED_HALF_VECTORS(16);
#undef HEED_HALF_VECTORS

// As many lanes as floats in one vector of Arch.
template <class Arch>
struct half_lanes : half_vectors<static_cast<int>(width<float, Arch>)> {
  using base = half_vectors<static_cast<int>(width<float, Arch>)>;
  using typename base::floats;
  using typename base::halves;
  using typename base::integers;
  using typename base::words;
  using float_register = typename vec<float, Arch>::register_type;

  static HEED_INLINE words load(const void* p) {
    halves h;
    std::memcpy(&h, p, sizeof h);
    words x;
    base::convert(h, x);
    return x;
  }
  static HEED_INLINE void store(void* p, const words& x) {
    halves h;
    base::convert(x, h);
    std::memcpy(p, &h, sizeof h);
  }
  static HEED_INLINE words bits(const vec<float, Arch>& v) {
    return reinterpret_cast<words>(v.data);
  }
  static HEED_INLINE vec<float, Arch> as_vec(const words& x) {
    return vec<float, Arch>(reinterpret_cast<float_register>(x));
  }
  // Of words below 2^31.
  static HEED_INLINE integers above(const words& x, std::uint32_t limit) {
    return reinterpret_cast<integers>(x) > static_cast<std::int32_t>(limit);
  }
  // x + sign y, as floats.
  static HEED_INLINE words sum(const words& x, std::uint32_t y, float sign) {
    return reinterpret_cast<words>(reinterpret_cast<floats>(x) + sign * std::bit_cast<float>(y));
  }
};

template <class Arch>
HEED_INLINE vec<float, Arch> widen_lanes(const bfloat16* p) {
  using lanes = half_lanes<Arch>;
  return lanes::as_vec(lanes::load(p) << 16);
}

template <class Arch>
HEED_INLINE vec<float, Arch> widen_lanes(const float16* p) {
  using lanes = half_lanes<Arch>;
  using namespace half_detail;
  const auto h = lanes::load(p);
  const auto sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
  const auto fraction = size << float16_shift;
  auto x = fraction + float16_rebias;
  x = lanes::above(size, float16_infinity - 1) ? fraction | infinity : x;
  x = lanes::above(size, float16_infinity) ? x | quiet_bit : x;
  const auto subnormal = lanes::sum(fraction + float16_normal, float16_normal, -1.0f);
  return lanes::as_vec(sign | (lanes::above(size, 0x03ffu) ? x : subnormal));
}

template <class Arch>
HEED_INLINE void narrow_lanes(const vec<float, Arch>& v, bfloat16* p) {
  using lanes = half_lanes<Arch>;
  using namespace half_detail;
  const auto x = lanes::bits(v);
  const auto rounded = (x + bfloat16_half + (x >> 16 & 1u)) >> 16;
  lanes::store(p, lanes::above(x & ~sign_bit, infinity) ? x >> 16 | bfloat16_quiet : rounded);
}

template <class Arch>
HEED_INLINE void narrow_lanes(const vec<float, Arch>& v, float16* p) {
  using lanes = half_lanes<Arch>;
  using namespace half_detail;
  const auto x = lanes::bits(v);
  const auto sign = (x & sign_bit) >> 16, size = x & ~sign_bit;
  auto h = (size - float16_rebias + float16_half + (size >> float16_shift & 1u)) >> float16_shift;
  h = lanes::above(size, float16_too_large - 1) ? 0 * h + float16_infinity : h;
  h = lanes::above(size, infinity)
          ? (size >> float16_shift & 0x3ffu) | float16_quiet | float16_infinity
          : h;
  const auto subnormal = lanes::sum(size, float16_subnormal_magic, 1.0f) - float16_subnormal_magic;
  lanes::store(p, sign | (lanes::above(size, float16_normal - 1) ? h : subnormal));
}
#else
template <class Arch, half_type H>
HEED_INLINE vec<float, Arch> widen_lanes(const H* p) {
  float lanes[width<float, Arch>];
  for (index i = 0; i < width<float, Arch>; ++i) lanes[i] = static_cast<float>(p[i]);
  return vec<float, Arch>::load_unaligned(lanes);
}
template <class Arch, half_type H>
HEED_INLINE void narrow_lanes(const vec<float, Arch>& v, H* p) {
  float lanes[width<float, Arch>];
  v.store_unaligned(lanes);
  for (index i = 0; i < width<float, Arch>; ++i) p[i] = H(lanes[i]);
}
#endif

// One vector of floats from p[0], p[1] ...
template <class Arch, half_type H>
HEED_INLINE vec<float, Arch> load_widened(const H* p) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<H, float16> && width<float, Arch> == 16) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  } else
#endif
#if defined(__F16C__)
      if constexpr (std::is_same_v<H, float16> && width<float, Arch> == 8) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  } else
#endif
    return widen_lanes<Arch>(p);
}

// One vector of floats to p[0], p[1] ...
template <class Arch, half_type H>
HEED_INLINE void store_narrowed(H* p, const vec<float, Arch>& v) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<H, float16> && width<float, Arch> == 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else
#endif
#if defined(__F16C__)
      if constexpr (std::is_same_v<H, float16> && width<float, Arch> == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  } else
#endif
    narrow_lanes<Arch>(v, p);
}

// to[i] = from[i] for i < n; vector(from, to) converts as many as a vector of floats has.
template <class Arch, class From, class To, class Vector>
void convert_run(const From* from, To* to, index n, const Vector& vector) {
  constexpr index lanes = width<float, Arch>;
  index i = 0;
  for (; i + lanes <= n; i += lanes) vector(from + i, to + i);
  if (i == n) return;
  From rest[lanes] = {};
  To converted[lanes];
  const auto count = static_cast<std::size_t>(n - i);
  std::memcpy(rest, from + i, count * sizeof(From));
  vector(rest, converted);
  std::memcpy(to + i, converted, count * sizeof(To));
}
// Exactly.
template <half_type H, class Arch = default_arch>
void widen(const H* from, float* to, index n) {
  convert_run<Arch>(from, to, n, [](const H* p, float* q) HEED_INLINE_LAMBDA {
    store_vec<Arch>(q, load_widened<Arch>(p));
  });
}
// Rounded to nearest even.
template <half_type H, class Arch = default_arch>
void narrow(const float* from, H* to, index n) {
  convert_run<Arch>(from, to, n, [](const float* p, H* q) HEED_INLINE_LAMBDA {
    store_narrowed<Arch>(q, load_vec<Arch>(p));
  });
}

}  // namespace heed::inline HEED_ABI::kernel
