// Copies into the layouts that the product reads: transposed strips of keys, padded rows.
#pragma once

#include <algorithm>

#include "heed/kernel/tile.hpp"

namespace heed::inline HEED_ABI::kernel {

// Elements that pack_columns writes for n keys.
template <class Arch, class T>
constexpr index packed_columns_size(index n, index depth) {
  return round_up(n, strip_width<T, Arch>) * depth;
}

// A square of keys, one vector on a side: to[d * ldt + j] = from[j * row_stride + d].
template <class Arch, class T>
HEED_INLINE void transpose_square(const T* from, index row_stride, T* to, index ldt) {
  constexpr int n = static_cast<int>(width<T, Arch>);
#if defined(HEED_HAS_SHUFFLE)
  vec<T, Arch> row[n];
  unroll<n>([&](auto j) HEED_INLINE_LAMBDA { row[j] = load_vec<Arch>(from + j * row_stride); });
  // Each round interleaves rows half the square apart; after log2(n) rounds it is transposed.
  const auto round = [&]() HEED_INLINE_LAMBDA {
    vec<T, Arch> next[n];
    unroll<n / 2>([&](auto j) HEED_INLINE_LAMBDA {
      next[2 * j] = interleave<false>(row[j], row[j + n / 2]);
      next[2 * j + 1] = interleave<true>(row[j], row[j + n / 2]);
    });
    unroll<n>([&](auto j) HEED_INLINE_LAMBDA { row[j] = next[j]; });
  };
  if constexpr (n >= 2) round();
  if constexpr (n >= 4) round();
  if constexpr (n >= 8) round();
  if constexpr (n >= 16) round();
  unroll<n>([&](auto d) HEED_INLINE_LAMBDA { store_vec<Arch>(to + d * ldt, row[d]); });
#else
  for (int j = 0; j < n; ++j) {
    for (int d = 0; d < n; ++d) to[d * ldt + j] = from[j * row_stride + d];
  }
#endif
}

// to[c * ldt + r] = from[r * ldf + c].
template <class Arch, class T>
inline void copy_transposed(const T* from, index ldf, index rows, index cols, T* to, index ldt) {
  constexpr index side = width<T, Arch>;
  for (index r = 0; r < rows; r += side) {
    const index used = (std::min)(side, rows - r);
    for (index c = 0; c < cols; c += side) {
      const T* square = from + r * ldf + c;
      T* turned = to + c * ldt + r;
      if (used == side && c + side <= cols) {
        transpose_square<Arch>(square, ldf, turned, ldt);
        continue;
      }
      const index wide = (std::min)(side, cols - c);
      for (index i = 0; i < used; ++i) {
        for (index j = 0; j < wide; ++j) turned[j * ldt + i] = square[i * ldf + j];
      }
    }
  }
}

// Keys as columns: strip s holds keys [s * strip_width, ...) as [depth][strip_width], so that
// element d of key j stands at (s * depth + d) * strip_width + j % strip_width. The last strip is
// padded with zeros. keys: [n x depth] with row stride row_stride and element stride
// element_stride. Each strip is a B of product(), with ldb = strip_width.
template <class Arch, class T>
inline void pack_columns(const T* keys, index row_stride, index element_stride, index n,
                         index depth, T* packed) {
  constexpr index w = strip_width<T, Arch>;
  constexpr index side = width<T, Arch>;
  constexpr index block = 16;  // a cache line of floats at a time
  static_assert(side <= 16);
  for (index first = 0; first < n; first += w, packed += w * depth) {
    const index used = n - first < w ? n - first : w;
    const index squared = element_stride == 1 && used == w ? depth / side * side : 0;
    for (index j = 0; j < w && squared > 0; j += side) {
      for (index d = 0; d < squared; d += side) {
        transpose_square<Arch>(keys + (first + j) * row_stride + d, row_stride, packed + d * w + j,
                               w);
      }
    }
    for (index d0 = squared; d0 < depth; d0 += block) {
      const index d1 = d0 + block < depth ? d0 + block : depth;
      for (index j = 0; j < used; ++j) {
        const T* key = keys + (first + j) * row_stride;
        for (index d = d0; d < d1; ++d) packed[d * w + j] = key[d * element_stride];
      }
      for (index d = d0; d < d1; ++d) {
        for (index j = used; j < w; ++j) packed[d * w + j] = T(0);
      }
    }
  }
}

// Whether n numbers are all finite; n is a multiple of the width.
template <class Arch, class T>
inline bool all_finite(const T* x, index n) {
  using v = vec<T, Arch>;
  constexpr index w = width<T, Arch>;
  v sum[4] = {v(T(0)), v(T(0)), v(T(0)), v(T(0))};  // 0 times what is finite
  const auto add = [&](auto& to, index i) HEED_INLINE_LAMBDA {
    to = multiply_add(load_vec<Arch>(x + i), v(T(0)), to);
  };
  index i = 0;
  for (; i + 4 * w <= n; i += 4 * w) {
    unroll<4>([&](auto k) HEED_INLINE_LAMBDA { add(sum[k], i + k * w); });
  }
  for (; i < n; i += w) add(sum[0], i);
  return xsimd::all((sum[0] + sum[1]) + (sum[2] + sum[3]) == v(T(0)));
}

// The reverse of pack_columns: rows[j * row_stride + d] for n keys.
template <class Arch, class T>
inline void unpack_columns(const T* packed, index n, index depth, T* rows, index row_stride) {
  constexpr index w = strip_width<T, Arch>;
  for (index j = 0; j < n; j += w) {
    copy_transposed<Arch>(packed + j * depth, w, depth, (std::min)(w, n - j), rows + j * row_stride,
                          row_stride);
  }
}

// to[r * ldt + c] = scale * from[r * row_stride + c * element_stride]; columns from cols to ldt
// become 0.
template <class Arch, class T>
inline void copy_rows(const T* from, index row_stride, index element_stride, index rows, index cols,
                      T* to, index ldt, T scale = T(1)) {
  constexpr index w = width<T, Arch>;
  // Rows of one head lie far apart: too far for the hardware to see them coming.
  constexpr index ahead = 12, line = static_cast<index>(64 / sizeof(T));
  for (index r = 0; r < rows; ++r, from += row_stride, to += ldt) {
    index c = 0;
    if (element_stride == 1) {
      for (index d = 0; d < cols && r + ahead < rows; d += line) {
        prefetch(from + ahead * row_stride + d);
      }
      for (; c + w <= cols; c += w) {
        store_vec<Arch>(to + c, load_vec<Arch>(from + c) * vec<T, Arch>(scale));
      }
    }
    for (; c < cols; ++c) to[c] = from[c * element_stride] * scale;
    for (; c < ldt; ++c) to[c] = T(0);
  }
}

}  // namespace heed::inline HEED_ABI::kernel
