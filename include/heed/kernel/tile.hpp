// The one matrix product of the library: C (+)= A B, register-blocked, fed from packed panels.
#pragma once

#include "heed/kernel/simd.hpp"

namespace heed::inline HEED_ABI::kernel {

// Vectors side by side in one register tile: 6 rows by 4 vectors fill 32 registers, 6 by 2 fill 16.
template <class Arch>
inline constexpr int vectors_per_tile = has_32_registers<Arch> ? 4 : 2;

inline constexpr int rows_per_tile = 6;

// Columns of one packed strip.
template <class T, class Arch>
inline constexpr index strip_width = vectors_per_tile<Arch>* width<T, Arch>;

// What the product adds to: nothing, C as it stands, or one value per column.
enum class start { zero, add, row_bias };

// A stride of 1 that the compiler knows of.
using unit_stride = std::integral_constant<index, 1>;

// One register tile, Rows x (Vecs vectors), over the whole depth. Element (r, k) of A lies at
// a[r * lda + k * step].
template <class Arch, int Rows, int Vecs, class T, class RowStride, class Step>
HEED_INLINE void product_tile(const T* a, RowStride lda, Step step_of_a, const T* b, index ldb,
                              T* c, index ldc, index depth, start from, const T* column_start) {
  constexpr index w = width<T, Arch>;
  vec<T, Arch> sum[Rows][Vecs];
  unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
    unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA {
      if (from == start::zero) {
        sum[r][v] = vec<T, Arch>(T(0));
      } else {
        sum[r][v] = load_vec<Arch>(from == start::add ? c + r * ldc + v * w : column_start + v * w);
      }
    });
  });
  const auto step = [&]() HEED_INLINE_LAMBDA {
    vec<T, Arch> right[Vecs];
    unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA { right[v] = load_vec<Arch>(b + v * w); });
    unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
      const vec<T, Arch> left(a[r * lda]);
      unroll<Vecs>([&](auto v)
                       HEED_INLINE_LAMBDA { sum[r][v] = multiply_add(left, right[v], sum[r][v]); });
    });
    b += ldb;
    a += step_of_a;
  };
  index k = 0;
  // Two steps at a time: one has the loop's own work beside it, and of four the compiler spreads
  // the registers over so many moves that they are a twentieth slower.
  for (; k + 2 <= depth; k += 2) unroll<2>([&](auto) HEED_INLINE_LAMBDA { step(); });
  if (k < depth) step();
  unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
    unroll<Vecs>([&](auto v)
                     HEED_INLINE_LAMBDA { store_vec<Arch>(c + r * ldc + v * w, sum[r][v]); });
  });
}

// All rows of one strip of Vecs vectors.
template <class Arch, int Vecs, class T, class RowStride, class Step>
HEED_NOINLINE void product_strip(const T* a, RowStride lda, Step step, const T* b, index ldb, T* c,
                                 index ldc, index rows, index depth, start from,
                                 const T* column_start) {
  const auto tile = [&](auto height) HEED_INLINE_LAMBDA {
    product_tile<Arch, decltype(height)::value, Vecs>(a, lda, step, b, ldb, c, ldc, depth, from,
                                                      column_start);
    a += height * lda;
    c += height * ldc;
    rows -= height;
  };
  while (rows >= 6) tile(std::integral_constant<int, 6>{});
  if (rows >= 3) tile(std::integral_constant<int, 3>{});
  if (rows == 2) tile(std::integral_constant<int, 2>{});
  if (rows == 1) tile(std::integral_constant<int, 1>{});
}

// The strips of product(), side by side.
template <class Arch, class T, class RowStride, class Step>
HEED_INLINE void product_strips(const T* a, RowStride lda, Step step, const T* b, index ldb, T* c,
                                index ldc, index rows, index cols, index depth, start from,
                                const T* column_start) {
  constexpr index w = width<T, Arch>;
  constexpr int most = vectors_per_tile<Arch>;
  for (; cols > 0; cols -= most * w) {
    const index vectors = (cols + w - 1) / w;
    const auto strip = [&](auto count) HEED_INLINE_LAMBDA {
      product_strip<Arch, decltype(count)::value>(a, lda, step, b, ldb, c, ldc, rows, depth, from,
                                                  column_start);
    };
    if (vectors >= most) {
      strip(std::integral_constant<int, most>{});
    } else if (vectors == 1) {
      strip(std::integral_constant<int, 1>{});
    } else if (vectors == 2) {
      strip(std::integral_constant<int, 2>{});
    } else {
      strip(std::integral_constant<int, 3>{});
    }
    b += most * w;
    c += most * w;
    if (column_start != nullptr) column_start += most * w;
  }
}

// C[rows x cols] = start + A[rows x depth] B[depth x cols], where start is 0, C itself, or
// column_start[col] in every row. All row-major, with row strides lda, ldb, ldc; any sizes >= 0.
//
// Reads B (and C, column_start where they are read) and writes C up to round_up(cols, width)
// columns in each row: the caller leaves room. No alignment is demanded; B with rows that start on
// 64 bytes is fastest.
template <class Arch, class T>
inline void product(const T* a, index lda, const T* b, index ldb, T* c, index ldc, index rows,
                    index cols, index depth, start from, const T* column_start = nullptr) {
  product_strips<Arch>(a, lda, unit_stride{}, b, ldb, c, ldc, rows, cols, depth, from,
                       column_start);
}

// C[rows x cols] = start + A^T B with A[depth x rows] row-major: otherwise as product().
template <class Arch, class T>
inline void product_transposed(const T* a, index lda, const T* b, index ldb, T* c, index ldc,
                               index rows, index cols, index depth, start from) {
  product_strips<Arch>(a, unit_stride{}, lda, b, ldb, c, ldc, rows, cols, depth, from,
                       static_cast<const T*>(nullptr));
}

}  // namespace heed::inline HEED_ABI::kernel
