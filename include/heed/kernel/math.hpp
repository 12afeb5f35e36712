// exp, sigmoid, tanh and log-sigmoid on whole vectors, to a few units in the last place.
#pragma once

#include "heed/kernel/simd.hpp"

namespace heed::inline HEED_ABI::kernel {

// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2. The polynomials for e^r are minimax
// fits of the relative error, made for this file in 60-digit arithmetic.
template <class T>
struct exp_constants;

template <>
struct exp_constants<float> {
  static constexpr int mantissa_bits = 23;
  static constexpr int exponent_bias = 127;
  // Adding it rounds a small number to an integer and leaves that integer in the low bits.
  static constexpr float round_magic = 0x1.8p23f;
  static constexpr float log2_e = 0x1.715476p+0f;
  // ln 2 = high + low; n * high is exact for |n| < 2^15.
  static constexpr float ln2_high = 0x1.63p-1f;
  static constexpr float ln2_low = -0x1.bd0106p-13f;
  static constexpr float ln2 = 0x1.62e43p-1f;
  // Below the first exp is under 1e-38 and may be 0; above the second it is infinite.
  static constexpr float lowest = -87.68f;
  static constexpr float highest = 88.8f;
  // Relative error 3.1e-9, with 1 and r exact; highest power first.
  static constexpr float series[] = {
      0x1.6a2434p-10f, 0x1.1239e2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f};
  // The same of degree 5, for softmax: relative error 7.5e-8.
  static constexpr float short_series[] = {0x1.0fe5b8p-7f, 0x1.575f08p-5f, 0x1.555a18p-3f,
                                           0x1.fffd1ap-2f, 0x1.fffff6p-1f, 0x1.000002p+0f};
  // 2^r on [0, 1), degree 5: relative error 7.5e-8.
  static constexpr float power_series[] = {0x1.ec486cp-10f, 0x1.268894p-7f, 0x1.c95614p-5f,
                                           0x1.ebd578p-3f,  0x1.62e4f8p-1f, 0x1.fffffep-1f};
};

template <>
struct exp_constants<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr int exponent_bias = 1023;
  static constexpr double round_magic = 0x1.8p52;
  static constexpr double log2_e = 0x1.71547652b82fep+0;
  // n * high is exact for |n| < 2^20.
  static constexpr double ln2_high = 0x1.62e42feep-1;
  static constexpr double ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double ln2 = 0x1.62e42fefa39efp-1;
  static constexpr double lowest = -708.7;
  static constexpr double highest = 710.0;
  // Relative error 3.6e-18.
  static constexpr double series[] = {0x1.ad7f6f0e24922p-26,
                                      0x1.28ad72cd4ab37p-22,
                                      0x1.71df255235e0bp-19,
                                      0x1.a0199a0c66195p-16,
                                      0x1.a01a012a57b5ep-13,
                                      0x1.6c16c1842a126p-10,
                                      0x1.1111111127be5p-7,
                                      0x1.555555555087cp-5,
                                      0x1.55555555554fap-3,
                                      0x1.000000000000ap-1,
                                      1.0,
                                      1.0};
  // The same of degree 10, for softmax: relative error 2.9e-16.
  static constexpr double short_series[] = {0x1.270798b6398f9p-22,
                                            0x1.72e92847816d6p-19,
                                            0x1.a01b7c77b67d8p-16,
                                            0x1.a0198d4cc57fep-13,
                                            0x1.6c16c0c817e37p-10,
                                            0x1.11111125b6f7fp-7,
                                            0x1.555555558916ap-5,
                                            0x1.55555555507b6p-3,
                                            0x1.ffffffffffed2p-2,
                                            1.0,
                                            1.0};
};

// sum series[i] r^(N - 1 - i).
template <class Arch, class T, std::size_t N>
HEED_INLINE vec<T, Arch> horner(const vec<T, Arch>& r, const T (&series)[N]) {
  vec<T, Arch> p(series[0]);
  unroll<static_cast<int>(N) - 1>(
      [&](auto i) HEED_INLINE_LAMBDA { p = multiply_add(p, r, vec<T, Arch>(series[i + 1])); });
  return p;
}

// 2^n for integers n in [-bias, bias + 1], given round_magic + n.
template <class Arch, class T>
HEED_INLINE vec<T, Arch> power_of_two(const vec<T, Arch>& magic_plus_n) {
  using c = exp_constants<T>;
  using integer = integer_of<T>;
  const vec<integer, Arch> one(static_cast<integer>(c::exponent_bias) << c::mantissa_bits);
  return bits_as<T>((bits_as<integer>(magic_plus_n) << c::mantissa_bits) + one);
}

// What is left of x after n ln 2.
template <class Arch, class T>
HEED_INLINE vec<T, Arch> reduce_by_ln2(const vec<T, Arch>& x, const vec<T, Arch>& n) {
  using c = exp_constants<T>;
  using v = vec<T, Arch>;
  return multiply_add(n, v(-c::ln2_low), multiply_add(n, v(-c::ln2_high), x));
}

// e^x for x <= 0: 0 below exp_constants::lowest (where it is under 1e-38 in float), exactly 1 at 0,
// NaN at NaN.
template <class Arch, class T>
HEED_INLINE vec<T, Arch> exp_negative(const vec<T, Arch>& x) {
  using c = exp_constants<T>;
  using v = vec<T, Arch>;
  const v shifted = multiply_add(x, v(c::log2_e), v(c::round_magic));
  const v p = horner<Arch>(reduce_by_ln2<Arch>(x, shifted - v(c::round_magic)), c::series);
  return xsimd::select(x < v(c::lowest), v(T(0)), p * power_of_two<Arch>(shifted));
}

// e^x for every x: +inf above the range, 0 far below it, NaN at NaN.
template <class Arch, class T>
HEED_INLINE vec<T, Arch> exp(const vec<T, Arch>& x) {
  using c = exp_constants<T>;
  using v = vec<T, Arch>;
  // Half of the exponent at a time, so that the ends of the range are reached without overflow.
  const v shifted = multiply_add(x, v(c::log2_e), v(c::round_magic));
  const v n = shifted - v(c::round_magic);
  const v half_shifted = multiply_add(n, v(T(0.5)), v(c::round_magic));
  const v half = half_shifted - v(c::round_magic);
  const v p = horner<Arch>(reduce_by_ln2<Arch>(x, n), c::series);
  const v scaled =
      (p * power_of_two<Arch>(half_shifted)) * power_of_two<Arch>((n - half) + v(c::round_magic));
  const v capped = xsimd::select(x > v(c::highest), v(std::numeric_limits<T>::infinity()), scaled);
  return xsimd::select(x < v(c::lowest), v(T(0)), capped);
}

// 1 / (1 + e^-x): exactly 0.5 at 0, exactly 1 and 0 where saturated.
template <class Arch, class T>
HEED_INLINE vec<T, Arch> sigmoid(const vec<T, Arch>& x) {
  using v = vec<T, Arch>;
  const v one(T(1));
  const v z = exp_negative<Arch>(smaller(x, -x));
  return xsimd::select(x < v(T(0)), z, one) / (one + z);
}

// From -expm1(-2 |x|) / (2 + expm1(-2 |x|)), which keeps its digits near 0.
template <class Arch, class T>
HEED_INLINE vec<T, Arch> tanh(const vec<T, Arch>& x) {
  using c = exp_constants<T>;
  using v = vec<T, Arch>;
  constexpr int terms = static_cast<int>(sizeof(c::series) / sizeof(T));
  const v size = xsimd::abs(x);
  const v y = larger(v(T(-2)) * size, v(c::lowest));
  const v shifted = multiply_add(y, v(c::log2_e), v(c::round_magic));
  const v r = reduce_by_ln2<Arch>(y, shifted - v(c::round_magic));
  v q(c::series[0]);
  unroll<terms - 3>([&](auto i)
                        HEED_INLINE_LAMBDA { q = multiply_add(q, r, v(c::series[i + 1])); });
  const v e = multiply_add(q * r, r, r);  // e^r - 1
  const v power = power_of_two<Arch>(shifted);
  const v m = multiply_add(power, e, power - v(T(1)));  // e^y - 1, in (-1, 0]
  const v t = -m / (v(T(2)) + m);
  return xsimd::select(x == x, xsimd::select(x < v(T(0)), -t, t), x);
}

// log(1 / (1 + e^-x)) = min(x, 0) - log(1 + e^-|x|).
template <class Arch, class T>
HEED_INLINE vec<T, Arch> log_sigmoid(const vec<T, Arch>& x) {
  using v = vec<T, Arch>;
  const v z = exp_negative<Arch>(smaller(x, -x));
  return smaller(x, v(T(0))) - xsimd::log1p(z);
}

}  // namespace heed::inline HEED_ABI::kernel
