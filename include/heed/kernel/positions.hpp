// Positions that count gates from the newest key to older ones, and tables read at them.
//
// Keys stand in lanes: the gates of a vector become sums over themselves and the lanes above by
// shift-and-add steps, on top of what the row has counted so far. A vector's positions span no more
// than its width, so two blocks of the row's table, one vector each, hold all entries that it
// reads.
#pragma once

#include "heed/kernel/math.hpp"

namespace heed::inline HEED_ABI::kernel {

// What a row has counted: base + part. The base is a multiple of two vector widths and the part
// small, so that long counts keep their digits.
template <class T, class Arch>
struct gate_count {
  static constexpr index step = 2 * width<T, Arch>;

  T part = 0;
  index base = 0;

  // The part becomes c, of which whole steps go to the base. NaN stays.
  void set(T c) {
    const index whole = c < T(1 << 20) ? static_cast<index>(c) / step * step : 0;
    part = c - static_cast<T>(whole);
    base += whole;
  }
  bool reached(index n) const { return part >= static_cast<T>(n - base); }
};

// One row's table of n entries z_0 .. z_{n-1}: value[i] = z_i and rise[i] = z_{i+1} - z_i; constant
// from entry n - 1 to the end.
template <class T, class Arch>
struct position_table {
  static constexpr index w = width<T, Arch>;

  const T* value;
  const T* rise;
  index last_block;  // from here on constant; one more block follows

  static constexpr index last_block_of(index n) { return (n - 1 + w - 1) / w; }
  // Elements that value and rise have each.
  static constexpr index size(index n) { return (last_block_of(n) + 2) * w; }

  // Completes a table from its first n values; rise follows value in memory.
  static void complete(T* value, index n) {
    const index end = size(n);
    T* rise = value + end;
    for (index i = n; i < end; ++i) value[i] = value[n - 1];
    for (index i = 0; i < end; i += w) {
      store_vec<Arch>(rise + i, load_vec<Arch>(value + i + 1) - load_vec<Arch>(value + i));
    }
    rise[end - 1] = 0;
  }
};

// x becomes 1 / (1 + e^-x), N vectors in step: exactly 0.5 at 0, exactly 1 and 0 where saturated, 0
// at -inf.
template <int N, class T, class Arch>
HEED_INLINE void gates_of(vec<T, Arch> (&x)[N]) {
  using c = exp_constants<T>;
  using v = vec<T, Arch>;
  const auto each = [](auto&& f) HEED_INLINE_LAMBDA { unroll<N>(f); };
  if constexpr (has_scalef<T, Arch>) {
    v r[N], p[N];
    each([&](auto i) HEED_INLINE_LAMBDA { x[i] = x[i] * v(-c::log2_e); });
    each([&](auto i) HEED_INLINE_LAMBDA { r[i] = above_floor<Arch>(x[i]); });
    each([&](auto i) HEED_INLINE_LAMBDA { p[i] = v(c::power_series[0]); });
    constexpr int terms = static_cast<int>(std::extent_v<decltype(c::power_series)>);
    unroll<terms - 1>([&](auto k) HEED_INLINE_LAMBDA {
      each([&](auto i)
               HEED_INLINE_LAMBDA { p[i] = multiply_add(p[i], r[i], v(c::power_series[k + 1])); });
    });
    // At 0 the polynomial is 1 - 2^-24, and 1 more rounds to 2.
    each([&](auto i) HEED_INLINE_LAMBDA { p[i] = v(T(1)) + times_power<Arch>(p[i], x[i]); });
    each([&](auto i) HEED_INLINE_LAMBDA { x[i] = v(T(1)) / p[i]; });
  } else {
    each([&](auto i) HEED_INLINE_LAMBDA { x[i] = sigmoid<Arch>(x[i]); });
  }
}

// Lane i becomes lane i + By, 0 where there is none.
template <int By, class T, class Arch>
HEED_INLINE vec<T, Arch> shift_down(const vec<T, Arch>& x) {
#if defined(HEED_HAS_SHUFFLE)
  constexpr int n = static_cast<int>(width<T, Arch>);
  return shuffle(
      x, vec<T, Arch>(T(0)), [](int i) constexpr { return i + By < n ? i + By : n; });
#else
  T lanes[2 * width<T, Arch>] = {};
  x.store_unaligned(lanes);
  return load_vec<Arch>(lanes + By);
#endif
}

// Lane i becomes the sum of lanes i, i + 1, ..., N vectors in step.
template <int N, class T, class Arch>
HEED_INLINE void sum_from_above(vec<T, Arch> (&x)[N]) {
  const auto step = [&](auto by) HEED_INLINE_LAMBDA {
    if constexpr (by < width<T, Arch>) {
      unroll<N>([&](auto i) HEED_INLINE_LAMBDA { x[i] += shift_down<by>(x[i]); });
    }
  };
  step(std::integral_constant<int, 1>{});
  step(std::integral_constant<int, 2>{});
  step(std::integral_constant<int, 4>{});
  step(std::integral_constant<int, 8>{});
}

template <class T, class Arch>
HEED_INLINE T first_lane(const vec<T, Arch>& x) {
#if defined(HEED_HAS_SHUFFLE)
  return x.data[0];
#else
  T lanes[width<T, Arch>];
  x.store_unaligned(lanes);
  return lanes[0];
#endif
}

#if defined(__AVX512F__)
template <class Arch>
HEED_INLINE vec<float, Arch> permute_two(const vec<float, Arch>& a, const vec<float, Arch>& b,
                                         const vec<std::int32_t, Arch>& at) {
  return vec<float, Arch>(_mm512_permutex2var_ps(a, at, b));
}
template <class Arch>
HEED_INLINE vec<double, Arch> permute_two(const vec<double, Arch>& a, const vec<double, Arch>& b,
                                          const vec<std::int64_t, Arch>& at) {
  return vec<double, Arch>(_mm512_permutex2var_pd(a, at, b));
}
#elif defined(__AVX2__)
template <class Arch>
HEED_INLINE vec<float, Arch> permute_two(const vec<float, Arch>& a, const vec<float, Arch>& b,
                                         const vec<std::int32_t, Arch>& at) {
  return vec<float, Arch>(_mm256_blendv_ps(_mm256_permutevar8x32_ps(a, at),
                                           _mm256_permutevar8x32_ps(b, at),
                                           _mm256_castsi256_ps(_mm256_slli_epi32(at, 28))));
}
#endif
// Whether two vectors can be indexed like one array, by the low bits of each lane.
template <class T, class Arch>
concept permutes_two = requires(vec<T, Arch> v, vec<integer_of<T>, Arch> at) {
  permute_two<Arch>(v, v, at);
};

// table[at] in each lane, where at lies in blocks `block` and block + 1. Other lanes get some entry
// of these blocks.
template <class T, class Arch>
HEED_INLINE vec<T, Arch> look_up(const T* table, index block, const vec<integer_of<T>, Arch>& at) {
  constexpr index w = width<T, Arch>;
  if constexpr (permutes_two<T, Arch>) {
    // The low bits tell even from odd blocks.
    const T* even = table + (block + 1) / 2 * 2 * w;
    const T* odd = table + (block / 2 * 2 + 1) * w;
    return permute_two<Arch>(load_vec<Arch>(even), load_vec<Arch>(odd), at);
  } else {
    integer_of<T> entry[w];
    T found[w];
    at.store_unaligned(entry);
    for (index i = 0; i < w; ++i) {
      const index low = block * w, high = low + 2 * w - 1, wanted = entry[i];
      found[i] = table[wanted < low ? low : wanted > high ? high : wanted];
    }
    return load_vec<Arch>(found);
  }
}

// Nothing is kept for a way back.
struct no_record {
  static constexpr bool wanted = false;
  no_record from(index) const noexcept { return {}; }
};

// The whole part of positions; any integer for NaN. xsimd converts doubles one by one, and C++ has
// no integer for NaN.
template <class T, class Arch>
HEED_INLINE vec<integer_of<T>, Arch> whole_part(const vec<T, Arch>& p) {
  if constexpr (std::is_same_v<T, float>) return xsimd::to_int(p);
  return xsimd::to_int(xsimd::select(p == p, p, vec<T, Arch>(T(0))));
}

// x[c] += what the table holds at the positions of N vectors of columns, and counts their gates.
// With Partial only the first `used` lanes of the last vector count.
template <int N, bool Partial, class T, class Arch, class Record>
HEED_INLINE void add_at_positions(T* x, const T* gates, index used,
                                  const position_table<T, Arch>& table, gate_count<T, Arch>& count,
                                  const Record& record) {
  using v = vec<T, Arch>;
  constexpr index w = width<T, Arch>;
  v p[N];
  index block[N];
  unroll<N>([&](auto i) HEED_INLINE_LAMBDA { p[i] = load_vec<Arch>(gates + i * w); });
  gates_of(p);
  if constexpr (Partial) {
    const auto counts = lane_numbers<Arch, T>() < v(static_cast<T>(used));
    p[N - 1] = xsimd::select(counts, p[N - 1], v(T(0)));
  }
  if constexpr (Record::wanted) {
    unroll<N>([&](auto i) HEED_INLINE_LAMBDA {
      store_vec<Arch>(record.gate_slope + i * w, p[i] * (v(T(1)) - p[i]));
    });
  }
  sum_from_above(p);
  T c = count.part;
  const T cap = static_cast<T>(table.last_block * w - count.base);
  unroll<N>([&](auto n) HEED_INLINE_LAMBDA {
    constexpr int i = N - 1 - n;
    block[i] = static_cast<index>(c < cap ? c : cap) / w;
    const T sum = first_lane(p[i]);
    p[i] += v(c);
    c += sum;
  });
  unroll<N>([&](auto i) HEED_INLINE_LAMBDA {
    const vec<integer_of<T>, Arch> at = whole_part(p[i]);
    const v z = look_up<T, Arch>(table.value + count.base, block[i], at);
    const v rise = look_up<T, Arch>(table.rise + count.base, block[i], at);
    const v above = p[i] - xsimd::to_float(at);
    store_vec<Arch>(x + i * w, multiply_add(above, rise, load_vec<Arch>(x + i * w) + z));
    if constexpr (Record::wanted) {
      const v end(static_cast<T>(record.limit - count.base));
      const v within = xsimd::select(p[i] < end, p[i], end);  // NaN: the end
      const vec<integer_of<T>, Arch> entry = xsimd::to_int(within);
      const v part = within - xsimd::to_float(entry);
      store_vec<Arch>(record.slope + i * w, xsimd::select(part == v(T(0)), v(T(0)), rise));
      store_vec<Arch>(record.above + i * w, part);
      (entry + vec<integer_of<T>, Arch>(static_cast<integer_of<T>>(count.base)))
          .store_unaligned(record.entry + i * w);
    }
  });
  count.set(c);
}

// x[0, n) += value, in whole vectors.
template <class Arch, class T>
HEED_INLINE void add_constant(T* x, index n, T value) {
  constexpr index w = width<T, Arch>;
  for (index c = 0; c < n; c += w) {
    store_vec<Arch>(x + c, load_vec<Arch>(x + c) + vec<T, Arch>(value));
  }
}

// Columns [0, n) of one row, the newest last: counts sigmoid(gates[c]) on from `count` and adds the
// table's value at each column's position to x[c]. gates may be x. Reads and writes whole vectors;
// what gates hold from n on does not matter. Once the count is `limit`, the table's last entry,
// gates are not read. What the way back reads is kept in a position_record.
template <class T, class Arch, class Record = no_record>
HEED_INLINE void add_positions(T* x, const T* gates, index n, const position_table<T, Arch>& table,
                               index limit, gate_count<T, Arch>& kept, const Record& record = {}) {
  constexpr index w = width<T, Arch>;
  gate_count<T, Arch> count = kept;
  if (const index used = n % w; used != 0 && !count.reached(limit)) {
    n -= used;
    add_at_positions<1, true>(x + n, gates + n, used, table, count, record.from(n));
  }
  while (n > 0 && !count.reached(limit)) {
    if (n >= 4 * w) {
      n -= 4 * w;
      add_at_positions<4, false>(x + n, gates + n, w, table, count, record.from(n));
    } else {
      n -= w;
      add_at_positions<1, false>(x + n, gates + n, w, table, count, record.from(n));
    }
  }
  kept = count;
  if constexpr (Record::wanted) *record.constant = n;
  add_constant<Arch>(x, n, table.value[limit]);
}

}  // namespace heed::inline HEED_ABI::kernel
