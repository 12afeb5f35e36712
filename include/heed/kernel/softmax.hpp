// The online softmax on a strip of rows, with a maximum that is only raised when it has to be.
#pragma once

#include <cmath>
#include <type_traits>

#include "heed/kernel/math.hpp"

namespace heed::inline HEED_ABI::kernel {

// What a strip of rows carries from one panel of keys to the next. A row stands for
// sum e^max over its keys, so far: log-sum-exp = max + log(sum of its partial sums).
template <class T>
struct softmax_rows {
  T* max;  // [rows] the reference of each row, natural log; -inf before the first key
  T* sum;  // [rows][width] partial sums of e^(x - max), one per lane
  T* out;  // [rows x dv] sum of e^(x - max) v, with row stride ldo; rescaled with max
  index ldo;
  index dv;

  softmax_rows from_row(index row, index lanes) const {
    return {max + row, sum + row * lanes, out + row * ldo, ldo, dv};
  }
};

// The state before the first key.
template <class Arch, class T>
inline void softmax_begin(index rows, const softmax_rows<T>& state) {
  constexpr index w = width<T, Arch>;
  for (index r = 0; r < rows; ++r) {
    state.max[r] = -std::numeric_limits<T>::infinity();
    store_vec<Arch>(state.sum + r * w, vec<T, Arch>(T(0)));
    T* out = state.out + r * state.ldo;
    const index whole = state.dv / w * w;
    for (index i = 0; i < whole; i += w) store_vec<Arch>(out + i, vec<T, Arch>(T(0)));
    for (index i = whole; i < state.dv; ++i) out[i] = T(0);
  }
}

// How softmax_strip takes its exponentials. A row's maximum is a whole number of octaves, m = M ln
// 2, so that one fused step rounds x log2(e) - M and the reduction needs no subtraction of m.
template <class T, class Arch>
struct octaves {
  using c = exp_constants<T>;
  using v = vec<T, Arch>;
  static constexpr bool one_step = has_fma<Arch> && sizeof(T) == 4;
  // Rows beyond this take differences first: M would not fit, or M ln 2 not be exact enough.
  static constexpr T limit = sizeof(T) == 8 ? T(1 << 18) : has_fma<Arch> ? T(1 << 20) : T(1 << 13);
  // Adding it leaves a biased exponent in the low bits.
  static constexpr T magic = c::round_magic + T(c::exponent_bias);
  // Logits further than this below the row's maximum are lifted to it: there the biased exponent
  // is 0, and so the result is exactly 0.
  static constexpr T depth = T(c::exponent_bias) * c::ln2;
  // The row maximum is raised when a logit exceeds it by more than a factor of 2^8.
  static constexpr T slack = T(8) * c::ln2;

  static bool near(T m) { return m >= -limit && m <= limit; }
  static T whole(T m) { return (m * c::log2_e + c::round_magic) - c::round_magic; }

  // Of a row: base - whole(max), and max - depth.
  static constexpr T base = has_scalef<T, Arch> ? T(0) : magic;
  v shift, floor;

  // x becomes its exponentials, N vectors in step: each alone is a chain of a dozen operations,
  // which fills the processor's window before the next one starts. Returns their sum.
  template <int N>
  HEED_INLINE v replace(T* logits) const {
    constexpr index w = width<T, Arch>;
    v x[N], shifted[N], p[N];
    const auto each = [&](auto&& f) HEED_INLINE_LAMBDA { unroll<N>(f); };
    const auto polynomial = [&](const auto& series) HEED_INLINE_LAMBDA {
      constexpr int terms = static_cast<int>(std::extent_v<std::remove_cvref_t<decltype(series)>>);
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = v(series[0]); });
      unroll<terms - 1>([&](auto k) HEED_INLINE_LAMBDA {
        each([&](auto i) HEED_INLINE_LAMBDA { p[i] = xsimd::fma(p[i], x[i], v(series[k + 1])); });
      });
    };
    if constexpr (has_scalef<T, Arch>) {
      // In octaves from the start. x log2(e) - M is rounded once, an error of the kind and size
      // that x itself has, and three instructions less.
      each([&](auto i) HEED_INLINE_LAMBDA {
        shifted[i] = xsimd::fma(load_vec<Arch>(logits + i * w), v(c::log2_e), shift);
      });
      each([&](auto i) HEED_INLINE_LAMBDA { x[i] = above_floor<Arch>(shifted[i]); });
      polynomial(c::power_series);
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = times_power<Arch>(p[i], shifted[i]); });
    } else {
      each([&](auto i)
               HEED_INLINE_LAMBDA { x[i] = larger(floor, load_vec<Arch>(logits + i * w)); });
      each([&](auto i) HEED_INLINE_LAMBDA { shifted[i] = xsimd::fma(x[i], v(c::log2_e), shift); });
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = shifted[i] - shift; });
      each([&](auto i) HEED_INLINE_LAMBDA {
        if constexpr (one_step) {
          x[i] = xsimd::fma(p[i], v(-c::ln2), x[i]);
        } else {
          x[i] = reduce_by_ln2<Arch>(x[i], p[i]);
        }
      });
      polynomial(c::short_series);
      each([&](auto i) HEED_INLINE_LAMBDA {
        p[i] *= bits_as<T>(bits_as<integer_of<T>>(shifted[i]) << c::mantissa_bits);
      });
    }
    each([&](auto i) HEED_INLINE_LAMBDA { store_vec<Arch>(logits + i * w, p[i]); });
    if constexpr (N == 4) return (p[0] + p[1]) + (p[2] + p[3]);
    if constexpr (N == 1) return p[0];
  }
};

// e^x of one number.
template <class Arch, class T>
inline T exp_of(T x) {
  T lanes[vec<T, Arch>::size];
  exp<Arch>(vec<T, Arch>(x)).store_unaligned(lanes);
  return lanes[0];
}

template <class Arch, class T>
HEED_INLINE void scale_row(T* row, index n, T factor) {
  constexpr index w = width<T, Arch>;
  index i = 0;
  for (; i + w <= n; i += w)
    store_vec<Arch>(row + i, load_vec<Arch>(row + i) * vec<T, Arch>(factor));
  for (; i < n; ++i) row[i] *= factor;
}

// Raises the maximum of row r to top, the largest lane by lane of its new logits, and rescales what
// the row has gathered. A row that meets NaN or +inf becomes NaN as a whole, and its maximum too.
template <class Arch, class T>
HEED_NOINLINE void raise_max(const vec<T, Arch>& seen, index r, const softmax_rows<T>& state) {
  using o = octaves<T, Arch>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const T old = state.max[r];
  T top = largest_lane(seen);
  T factor = T(0);
  if (!(top < infinity) || old != old) {
    top = factor = std::numeric_limits<T>::quiet_NaN();
  } else if (o::near(top)) {
    const T octave = o::whole(top);
    top = octave * exp_constants<T>::ln2;
    if (o::near(old)) factor = exp_of<Arch>((o::whole(old) - octave) * exp_constants<T>::ln2);
  } else if (old != -infinity) {
    factor = exp_of<Arch>(old - top);
  }
  state.max[r] = top;
  if (old == -infinity && factor == factor) return;  // nothing gathered yet
  scale_row<Arch>(state.sum + r * width<T, Arch>, width<T, Arch>, factor);
  scale_row<Arch>(state.out + r * state.ldo, state.dv, factor);
}

// From here on row r's logits come without c, which all of them would have had added: what the row
// has gathered becomes relative to such logits.
template <class Arch, class T>
HEED_NOINLINE void leave_out(T c, index r, const softmax_rows<T>& state) {
  using o = octaves<T, Arch>;
  const T old = state.max[r];
  if (old == -std::numeric_limits<T>::infinity()) return;  // nothing gathered yet
  T top = old - c, exponent = T(0);
  if (o::near(top)) {
    const T octave = o::whole(top);
    exponent = o::near(old) ? (o::whole(old) - octave) * exp_constants<T>::ln2 - c
                            : top - octave * exp_constants<T>::ln2;
    top = octave * exp_constants<T>::ln2;
  }
  state.max[r] = top;
  const T factor = exp_of<Arch>(exponent);
  scale_row<Arch>(state.sum + r * width<T, Arch>, width<T, Arch>, factor);
  scale_row<Arch>(state.out + r * state.ldo, state.dv, factor);
}

// Rows of a group in which a maximum is too large for whole octaves, or NaN: differences first.
template <class Arch, class T>
HEED_NOINLINE void softmax_far_row(T* x, index cols, T m, T* sum) {
  constexpr index w = width<T, Arch>;
  using o = octaves<T, Arch>;
  const bool unseen = m == -std::numeric_limits<T>::infinity();
  const T reference = unseen ? T(0) : o::near(m) ? o::whole(m) * exp_constants<T>::ln2 : m;
  vec<T, Arch> total = load_vec<Arch>(sum);
  for (index c = 0; c < cols; c += w) {
    const vec<T, Arch> p = exp<Arch>(load_vec<Arch>(x + c) - vec<T, Arch>(reference));
    store_vec<Arch>(x + c, p);
    total += p;
  }
  store_vec<Arch>(sum, total);
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

// The exponentials of up to 16 rows whose maxima are settled.
template <class Arch, class T>
HEED_INLINE void softmax_group(T* logits, index ld, index rows, index used, const T* max, T* sum) {
  using v = vec<T, Arch>;
  using o = octaves<T, Arch>;
  constexpr index w = width<T, Arch>;
  const index cols = round_up(used, w);
  // The rows' constants, in vectors; as numbers in memory each costs a row one load.
  T shift[16] = {}, floor[16];
  for (index r = 0; r < rows; ++r) shift[r] = max[r];
  bool all_near = true;
  unroll<16 / w>([&](auto i) HEED_INLINE_LAMBDA {
    const v seen = load_vec<Arch>(shift + i * w);
    const v m = xsimd::select(seen == v(-std::numeric_limits<T>::infinity()), v(T(0)), seen);
    all_near &= xsimd::all(xsimd::abs(m) <= v(o::limit));
    const v octave = xsimd::fma(m, v(exp_constants<T>::log2_e), v(exp_constants<T>::round_magic)) -
                     v(exp_constants<T>::round_magic);
    store_vec<Arch>(shift + i * w, v(o::base) - octave);
    store_vec<Arch>(floor + i * w, m - v(o::depth));
  });
  if (!all_near) {
    for (index r = 0; r < rows; ++r) {
      softmax_far_row<Arch>(logits + r * ld, cols, max[r], sum + r * w);
      if (used < cols) fill_columns<Arch>(logits + r * ld, used, cols, T(0));
    }
    return;
  }
  for (index r = 0; r < rows; ++r) {
    T* x = logits + r * ld;
    const o exponential{v(shift[r]), v(floor[r])};
    v total = load_vec<Arch>(sum + r * w);
    index c = 0;
    for (; c + 4 * w <= cols; c += 4 * w) total += exponential.template replace<4>(x + c);
    for (; c < cols; c += w) total += exponential.template replace<1>(x + c);
    store_vec<Arch>(sum + r * w, total);
  }
}

// One panel of logits, [rows x cols] with row stride ld, becomes e^(x - max) in place, and the
// rows' sums grow by it. x are natural-log logits, -inf where nothing is visible: those become
// exactly 0. Columns from cols to round_up(cols, width) are overwritten with 0. Where a logit
// exceeds a row's maximum by more than 8 ln 2, the maximum is raised first and the row's sum and
// out are rescaled. A row that has seen only -inf keeps max = -inf and sum = 0. A row with a NaN
// or +inf ends as NaN in its sum and, once these probabilities are multiplied by values, in out.
template <class Arch, class T>
inline void softmax_strip(T* logits, index ld, index rows, index cols,
                          const softmax_rows<T>& state) {
  using v = vec<T, Arch>;
  using o = octaves<T, Arch>;
  constexpr index w = width<T, Arch>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const index padded = round_up(cols, w);
  if (padded == 0) return;
  for (index r = 0; r < rows; ++r) {
    T* x = logits + r * ld;
    if (cols < padded) fill_columns<Arch>(x, cols, padded, -infinity);
    v top = load_vec<Arch>(x);
    for (index c = w; c < padded; c += w) top = larger(top, load_vec<Arch>(x + c));
    if (!xsimd::all(top <= v(state.max[r] + o::slack))) raise_max<Arch>(top, r, state);
  }
  constexpr index group = 16;
  for (index first = 0; first < rows; first += group) {
    const index count = rows - first < group ? rows - first : group;
    softmax_group<Arch>(logits + first * ld, ld, count, cols, state.max + first,
                        state.sum + first * w);
  }
}

// The second sweep of stages after softmax: x becomes e^(x - lse[row]) in place, with lse the final
// log-sum-exp of the row less log(share[row]), its rest from rounding. 0 where x or lse is -inf,
// and in columns from cols to round_up(cols, width).
template <class Arch, class T>
inline void exp_strip(T* logits, index ld, index rows, index cols, const T* lse, const T* share) {
  using v = vec<T, Arch>;
  constexpr index w = width<T, Arch>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const index padded = round_up(cols, w);
  for (index r = 0; r < rows; ++r) {
    T* x = logits + r * ld;
    if (cols < padded) fill_columns<Arch>(x, cols, padded, -infinity);
    const v reference(lse[r] == -infinity ? T(0) : lse[r]), rest(share[r]);
    for (index c = 0; c < padded; c += w) {
      store_vec<Arch>(x + c, rest * exp_negative<Arch>(load_vec<Arch>(x + c) - reference));
    }
  }
}

// The sum of row r.
template <class Arch, class T>
inline T reduce_sum(index r, const softmax_rows<T>& state) {
  return sum_lanes(load_vec<Arch>(state.sum + r * width<T, Arch>));
}

// Divides out by the row's sum and returns its log-sum-exp. sink is one more logit that only the
// sum sees. A row without any key: out 0 and the log-sum-exp is the sink, -inf without one.
template <class Arch, class T>
inline T finish_row(index r, const softmax_rows<T>& state,
                    T sink = -std::numeric_limits<T>::infinity()) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const T m = state.max[r];
  if (m == -infinity && sink == -infinity && reduce_sum<Arch>(r, state) == T(0)) return -infinity;
  if (sink == -infinity) {
    const T total = reduce_sum<Arch>(r, state);
    scale_row<Arch>(state.out + r * state.ldo, state.dv, T(1) / total);
    return m + std::log(total);
  }
  const T top = sink > m ? sink : m;
  const T share = exp_of<Arch>(m - top);
  const T total = reduce_sum<Arch>(r, state) * share + exp_of<Arch>(sink - top);
  scale_row<Arch>(state.out + r * state.ldo, state.dv, share / total);
  return top + std::log(total);
}

}  // namespace heed::inline HEED_ABI::kernel
