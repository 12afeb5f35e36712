// The online softmax on a strip of rows, with a maximum that is only raised when it has to be.
#pragma once

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

  // The exponentials of N vectors in step: each alone is a chain of a dozen operations, which fills
  // the processor's window before the next one starts.
  template <int N>
  HEED_INLINE void find(const T* logits, v (&p)[N]) const {
    constexpr index w = width<T, Arch>;
    v x[N], shifted[N];
    const auto each = [&](auto&& f) HEED_INLINE_LAMBDA { unroll<N>(f); };
    const auto polynomial = [&](const auto& series) HEED_INLINE_LAMBDA {
      constexpr int terms = static_cast<int>(std::extent_v<std::remove_cvref_t<decltype(series)>>);
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = v(series[0]); });
      unroll<terms - 1>([&](auto k) HEED_INLINE_LAMBDA {
        each([&](auto i) HEED_INLINE_LAMBDA { p[i] = multiply_add(p[i], x[i], v(series[k + 1])); });
      });
    };
    if constexpr (has_scalef<T, Arch>) {
      // In octaves from the start. x log2(e) - M is rounded once, an error of the kind and size
      // that x itself has, and three instructions less.
      each([&](auto i) HEED_INLINE_LAMBDA {
        shifted[i] = multiply_add(load_vec<Arch>(logits + i * w), v(c::log2_e), shift);
      });
      each([&](auto i) HEED_INLINE_LAMBDA { x[i] = above_floor<Arch>(shifted[i]); });
      polynomial(c::power_series);
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = times_power<Arch>(p[i], shifted[i]); });
    } else {
      each([&](auto i)
               HEED_INLINE_LAMBDA { x[i] = larger(floor, load_vec<Arch>(logits + i * w)); });
      each([&](auto i)
               HEED_INLINE_LAMBDA { shifted[i] = multiply_add(x[i], v(c::log2_e), shift); });
      each([&](auto i) HEED_INLINE_LAMBDA { p[i] = shifted[i] - shift; });
      each([&](auto i) HEED_INLINE_LAMBDA {
        if constexpr (one_step) {
          x[i] = multiply_add(p[i], v(-c::ln2), x[i]);
        } else {
          x[i] = reduce_by_ln2<Arch>(x[i], p[i]);
        }
      });
      polynomial(c::short_series);
      each([&](auto i) HEED_INLINE_LAMBDA {
        p[i] *= bits_as<T>(bits_as<integer_of<T>>(shifted[i]) << c::mantissa_bits);
      });
    }
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

// Softmax in one sweep over the keys, or in two.
enum class pass {
  online,   // softmax and values in one go
  measure,  // row maximum and sum only
  weigh,    // probabilities from these, stages after softmax, values
};

// What becomes of the exponentials of some rows.
template <pass Which, class T>
struct exponentials_use {
  T* sum;           // [rows][width], online and measure: it grows by them
  T* to;            // [rows x cols], row stride ld, online and weigh: they are written there
  const T* factor;  // [rows], weigh: after they have been multiplied by this
  index ld;

  // N vectors of row r, from column c on; total is the row's sum.
  template <int N, class Arch>
  HEED_INLINE void take(const vec<T, Arch> (&p)[N], index r, index c, vec<T, Arch>& total) const {
    unroll<N>([&](auto i) HEED_INLINE_LAMBDA {
      T* at = to + r * ld + c + i * width<T, Arch>;
      if constexpr (Which == pass::online) store_vec<Arch>(at, p[i]);
      if constexpr (Which == pass::weigh) store_vec<Arch>(at, p[i] * vec<T, Arch>(factor[r]));
    });
    if constexpr (N == 4) total += (p[0] + p[1]) + (p[2] + p[3]);
    if constexpr (N == 1) total += p[0];
  }
};

// A row in a group of which a maximum is too large for whole octaves, or NaN: differences first.
template <class Arch, class T, class Use>
HEED_NOINLINE vec<T, Arch> softmax_far_row(const T* x, index cols, T m, index r, const Use& use) {
  using v = vec<T, Arch>;
  using o = octaves<T, Arch>;
  const bool unseen = m == -std::numeric_limits<T>::infinity();
  const T reference = unseen ? T(0) : o::near(m) ? o::whole(m) * exp_constants<T>::ln2 : m;
  v total(T(0));
  for (index c = 0; c < cols; c += width<T, Arch>) {
    const v p[1] = {exp<Arch>(load_vec<Arch>(x + c) - v(reference))};
    use.take(p, r, c, total);
  }
  return total;
}

// The exponentials of up to 16 rows from row `first` on, whose maxima are settled.
template <class Arch, pass Which, class T>
HEED_INLINE void softmax_group(const T* logits, index ld, index first, index rows, index cols,
                               const T* max, const exponentials_use<Which, T>& use) {
  using v = vec<T, Arch>;
  using o = octaves<T, Arch>;
  constexpr index w = width<T, Arch>;
  // The rows' constants, in vectors; as numbers in memory each costs a row one load.
  T shift[16] = {}, floor[16];
  for (index r = 0; r < rows; ++r) shift[r] = max[first + r];
  bool all_near = true;
  unroll<16 / w>([&](auto i) HEED_INLINE_LAMBDA {
    const v seen = load_vec<Arch>(shift + i * w);
    const v m = xsimd::select(seen == v(-std::numeric_limits<T>::infinity()), v(T(0)), seen);
    all_near &= xsimd::all(xsimd::abs(m) <= v(o::limit));
    const v octave =
        multiply_add(m, v(exp_constants<T>::log2_e), v(exp_constants<T>::round_magic)) -
        v(exp_constants<T>::round_magic);
    store_vec<Arch>(shift + i * w, v(o::base) - octave);
    store_vec<Arch>(floor + i * w, m - v(o::depth));
  });
  for (index r = first; r < first + rows; ++r) {
    const T* x = logits + r * ld;
    v total(T(0));
    if (all_near) {
      const o exponential{v(shift[r - first]), v(floor[r - first])};
      index c = 0;
      const auto take = [&](auto count) HEED_INLINE_LAMBDA {
        v p[decltype(count)::value];
        exponential.find(x + c, p);
        use.take(p, r, c, total);
        c += decltype(count)::value * w;
      };
      while (c + 4 * w <= cols) take(std::integral_constant<int, 4>{});
      while (c < cols) take(std::integral_constant<int, 1>{});
    } else {
      total = softmax_far_row<Arch>(x, cols, max[r], r, use);
    }
    if constexpr (Which != pass::weigh) {
      store_vec<Arch>(use.sum + r * w, load_vec<Arch>(use.sum + r * w) + total);
    }
  }
}
// The same of any number of rows.
template <class Arch, pass Which, class T>
HEED_INLINE void softmax_groups(const T* logits, index ld, index rows, index cols, const T* max,
                                const exponentials_use<Which, T>& use) {
  constexpr index group = 16;
  for (index first = 0; first < rows; first += group) {
    softmax_group<Arch>(logits, ld, first, (std::min)(group, rows - first), cols, max, use);
  }
}

// Columns from cols to round_up(cols, width) of all rows become `value`.
template <class Arch, class T>
HEED_INLINE void fill_rest(T* rows_at, index ld, index rows, index cols, T value) {
  const index end = round_up(cols, width<T, Arch>);
  for (index r = 0; r < rows && cols < end; ++r) {
    fill_columns<Arch>(rows_at + r * ld, cols, end, value);
  }
}

// Raises the maxima of rows where a logit exceeds it by more than 8 ln 2. Columns from cols to
// round_up(cols, width) become -inf. Unless `copy` is null, all goes there, too.
template <class Arch, class T>
HEED_INLINE void raise_maxima(T* logits, index ld, index rows, index cols,
                              const softmax_rows<T>& state, T* copy, index ld_copy) {
  using v = vec<T, Arch>;
  fill_rest<Arch>(logits, ld, rows, cols, -std::numeric_limits<T>::infinity());
  for (index r = 0; r < rows; ++r) {
    v top(-std::numeric_limits<T>::infinity());
    for (index c = 0; c < cols; c += width<T, Arch>) {
      const v x = load_vec<Arch>(logits + r * ld + c);
      top = larger(top, x);
      if (copy != nullptr) store_vec<Arch>(copy + r * ld_copy + c, x);
    }
    if (!xsimd::all(top <= v(state.max[r] + octaves<T, Arch>::slack))) {
      raise_max<Arch>(top, r, state);
    }
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
  raise_maxima<Arch>(logits, ld, rows, cols, state, static_cast<T*>(nullptr), 0);
  softmax_groups<Arch>(logits, ld, rows, cols, state.max,
                       exponentials_use<pass::online, T>{state.sum, logits, nullptr, ld});
  fill_rest<Arch>(logits, ld, rows, cols, T(0));  // of a row that is NaN it became NaN
}

// The first of two sweeps: softmax_strip, but the logits stay what they are. Unless `copy` is null
// they are copied there.
template <class Arch, class T>
inline void measure_strip(T* logits, index ld, index rows, index cols, const softmax_rows<T>& state,
                          T* copy, index ld_copy) {
  raise_maxima<Arch>(logits, ld, rows, cols, state, copy, ld_copy);
  softmax_groups<Arch>(logits, ld, rows, cols, state.max,
                       exponentials_use<pass::measure, T>{state.sum, nullptr, nullptr, 0});
}

// The second of two sweeps: to[row] = factor[row] e^(x - max[row]), max as the first one has left
// it; 0 in columns from cols to round_up(cols, width). `to` may be where the logits are.
template <class Arch, class T>
inline void exp_strip(const T* logits, index ld, index rows, index cols, const T* max,
                      const T* factor, T* to, index ldt) {
  softmax_groups<Arch>(logits, ld, rows, cols, max,
                       exponentials_use<pass::weigh, T>{nullptr, to, factor, ldt});
  fill_rest<Arch>(to, ldt, rows, cols, T(0));
}

}  // namespace heed::inline HEED_ABI::kernel
