// Forward substitution with a unit lower triangular matrix, in blocks.
#pragma once

#include "heed/kernel/tile.hpp"

namespace heed::inline HEED_ABI::kernel {

// Rows that are solved one by one; what older rows add to them is one product.
inline constexpr index triangular_block = 2 * rows_per_tile;

// Rows [begin, end) within one block: x[r] += sum over s in [begin, r) of n[r][s] x[s], for Vecs
// vectors of columns. The sums of a row stay in registers.
template <class Arch, int Vecs, class T>
HEED_INLINE void substitute_rows(const T* n, index ldn, T* x, index ldx, index begin, index end) {
  constexpr index w = width<T, Arch>;
  for (index r = begin + 1; r < end; ++r) {
    vec<T, Arch> sum[Vecs];
    unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA { sum[v] = load_vec<Arch>(x + r * ldx + v * w); });
    for (index s = begin; s < r; ++s) {
      const vec<T, Arch> factor(n[r * ldn + s]);
      unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA {
        sum[v] = multiply_add(factor, load_vec<Arch>(x + s * ldx + v * w), sum[v]);
      });
    }
    unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA { store_vec<Arch>(x + r * ldx + v * w, sum[v]); });
  }
}

template <class Arch, class T>
HEED_NOINLINE void substitute_block(const T* n, index ldn, T* x, index ldx, index cols, index begin,
                                    index end) {
  constexpr index w = width<T, Arch>;
  constexpr int most = vectors_per_tile<Arch>;
  index c = 0;
  for (; c + most * w <= cols; c += most * w) {
    substitute_rows<Arch, most>(n, ldn, x + c, ldx, begin, end);
  }
  for (; c < cols; c += w) substitute_rows<Arch, 1>(n, ldn, x + c, ldx, begin, end);
}

// Solves (I - N) X = R in place, N strictly lower triangular [n x n], R in x [n x cols]. Entries of
// N on and above the diagonal are not read. Where R is `strictly_lower` too, so is X: what of R is
// on and above the diagonal must be 0 and stays so. Rows are read and written up to
// round_up(cols, width).
template <class Arch, class T>
inline void solve_unit_lower(const T* n, index ldn, T* x, index ldx, index rows, index cols,
                             bool strictly_lower = false) {
  for (index begin = 0; begin < rows; begin += triangular_block) {
    const index end = (std::min)(rows, begin + triangular_block);
    T* block = x + begin * ldx;
    if (begin > 0) {
      const index of_older = strictly_lower ? (std::min)(cols, begin) : cols;
      product<Arch>(n + begin * ldn, ldn, x, ldx, block, ldx, end - begin, of_older, begin,
                    start::add);
    }
    substitute_block<Arch>(n, ldn, x, ldx, cols, begin, end);
  }
}

}  // namespace heed::inline HEED_ABI::kernel
