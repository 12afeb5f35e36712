// Products of few rows with what a cache stores: bound by memory, and so written to keep it busy.
//
// Keys and values are read once, front to back, and asked for some lines ahead: by the time that a
// vector is used it has come.
#pragma once

#include "heed/kernel/half.hpp"
#include "heed/kernel/tile.hpp"

namespace heed::inline HEED_ABI::kernel {

// One vector of numbers that are stored as Stored.
template <class T, class Arch, class Stored>
HEED_INLINE vec<T, Arch> load_stored(const Stored* p) {
  if constexpr (std::is_same_v<T, Stored>) {
    return load_vec<Arch>(p);
  } else {
    static_assert(std::is_same_v<T, float> && half_type<Stored>,
                  "heed: a cache stores T itself or, of float, bfloat16 or float16");
    return load_widened<Arch>(p);
  }
}
// to[0, n) = from[0, n).
template <class T, class Stored>
void store_as(const T* from, Stored* to, index n) {
  if constexpr (half_type<Stored> && std::is_same_v<T, float>) {
    narrow(from, to, n);
  } else {
    for (index i = 0; i < n; ++i) to[i] = static_cast<Stored>(from[i]);
  }
}

// Bytes that are asked for ahead of those at hand.
inline constexpr index stream_ahead = 2048;

// c[r][v] (+)= sum over k of a[r][k] b[k][v] for Rows rows and Vecs vectors of columns; starts from
// `column_start`, from 0 where that is null, or with Add from what c holds. Asks ahead if told so.
template <class Arch, int Rows, int Vecs, bool Add, class T, class Stored>
HEED_NOINLINE void stream_tile(const T* a, index lda, const Stored* b, index ldb, T* c, index ldc,
                               index depth, const T* column_start, bool ask) {
  constexpr index w = width<T, Arch>;
  constexpr index line = static_cast<index>(64 / sizeof(Stored));
  vec<T, Arch> sum[Rows][Vecs];
  unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
    unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA {
      if (Add) {
        sum[r][v] = load_vec<Arch>(c + r * ldc + v * w);
      } else {
        sum[r][v] =
            column_start == nullptr ? vec<T, Arch>(T(0)) : load_vec<Arch>(column_start + v * w);
      }
    });
  });
  constexpr index ahead = stream_ahead / static_cast<index>(sizeof(Stored));
  const auto step = [&]() HEED_INLINE_LAMBDA {
    if (ask) {
      for (index d = 0; d < ldb; d += line) prefetch(b + ahead + d);
    }
    unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA {
      const vec<T, Arch> right = load_stored<T, Arch>(b + v * w);
      unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
        sum[r][v] = xsimd::fma(vec<T, Arch>(a[r * lda]), right, sum[r][v]);
      });
    });
    b += ldb;
    ++a;
  };
  for (index k = 0; k < depth; ++k) step();
  unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
    unroll<Vecs>([&](auto v)
                     HEED_INLINE_LAMBDA { store_vec<Arch>(c + r * ldc + v * w, sum[r][v]); });
  });
}

// C[rows x cols] = start + A[rows x depth] B[depth x cols], or C += A B, for few rows; as product()
// in what it reads and writes beyond `cols`. Rows of B lie `ldb` apart, all of which is read.
template <class Arch, bool Add, class T, class Stored>
void stream_product(const T* a, index lda, const Stored* b, index ldb, T* c, index ldc, index rows,
                    index cols, index depth, const T* column_start) {
  bool ask = true;
  constexpr index w = width<T, Arch>;
  constexpr int most = vectors_per_tile<Arch>;
  const auto columns = [&](auto height) {
    constexpr int r = decltype(height)::value;
    index at = 0;
    const auto strip = [&](auto count) {
      stream_tile<Arch, r, decltype(count)::value, Add>(
          a, lda, b + at, ldb, c + at, ldc, depth,
          column_start == nullptr ? nullptr : column_start + at, ask);
      at += decltype(count)::value * w;
      ask = false;  // all of B has been asked for
    };
    while (cols - at > (most - 1) * w) strip(std::integral_constant<int, most>{});
    while (cols > at) strip(std::integral_constant<int, 1>{});
    a += r * lda;
    c += r * ldc;
    rows -= r;
  };
  while (rows >= 4) columns(std::integral_constant<int, 4>{});
  while (rows >= 2) columns(std::integral_constant<int, 2>{});
  if (rows == 1) columns(std::integral_constant<int, 1>{});
}

}  // namespace heed::inline HEED_ABI::kernel
