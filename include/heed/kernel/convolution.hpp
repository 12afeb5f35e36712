// Convolution of a panel over heads, queries and keys, in place and directly: no column is computed
// twice, no row is written before every row that reads it is done.
#pragma once

#include "heed/kernel/panel.hpp"
#include "heed/kernel/simd.hpp"

namespace heed::inline HEED_ABI::kernel {

// Output row of weights: for head h of the call and head m of its group, weight (a, b) stands at
// data[((h * heads + m) * keys + b) * queries + a].
template <class T>
struct convolution_weights {
  const T* data;
  index heads, queries, keys;
  const T* at(index head, index member) const noexcept {
    return data + (head * heads + member) * keys * queries;
  }
};

// What one register tile adds up: out[r][c] += sum over a < A and b of
// weights[b * ldw + a] in[(r + a) * ld + c + b].
struct convolution_block {
  index ld, ldw, keys;
};

// The sums of Rows rows and Vecs vectors of columns, over A kernel rows. Input vectors stream
// through; the A weights of one key and the sums stay in registers.
template <class Arch, int Rows, int Vecs, int A, class T>
HEED_INLINE void convolve_rows(const T* in, const T* weights, const convolution_block& k,
                               vec<T, Arch> (&sum)[Rows][Vecs]) {
  constexpr index w = width<T, Arch>;
  for (index b = 0; b < k.keys; ++b, ++in, weights += k.ldw) {
    vec<T, Arch> weight[A];
    unroll<A>([&](auto a) HEED_INLINE_LAMBDA { weight[a] = vec<T, Arch>(weights[a]); });
    unroll<Rows + A - 1>([&](auto x) HEED_INLINE_LAMBDA {
      vec<T, Arch> entry[Vecs];
      unroll<Vecs>([&](auto v)
                       HEED_INLINE_LAMBDA { entry[v] = load_vec<Arch>(in + x * k.ld + v * w); });
      unroll<A>([&](auto a) HEED_INLINE_LAMBDA {
        constexpr int r = decltype(x)::value - decltype(a)::value;
        if constexpr (r >= 0 && r < Rows) {
          unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA {
            sum[r][v] = xsimd::fma(weight[a], entry[v], sum[r][v]);
          });
        }
      });
    });
  }
}

// One register tile over all kernel rows [first, queries), written to out (row stride ldo) from
// sums that begin at 0, or at what out holds. `in` is the entry that weight (0, 0) meets in row 0,
// column 0; kernel rows before `first` meet rows that do not exist.
template <class Arch, int Rows, int Vecs, class T>
HEED_NOINLINE void convolve_tile(const T* in, const T* weights, const convolution_block& k,
                                 index first, index queries, bool add, T* out, index ldo) {
  constexpr index w = width<T, Arch>;
  vec<T, Arch> sum[Rows][Vecs];
  unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
    unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA {
      sum[r][v] = add ? load_vec<Arch>(out + r * ldo + v * w) : vec<T, Arch>(T(0));
    });
  });
  const auto rows = [&](auto count) HEED_INLINE_LAMBDA {
    convolve_rows<Arch, Rows, Vecs, decltype(count)::value>(in + first * k.ld, weights + first, k,
                                                            sum);
    first += count;
  };
  while (queries - first >= 6) rows(std::integral_constant<int, 6>{});
  while (queries - first >= 2) rows(std::integral_constant<int, 2>{});
  if (queries - first == 1) rows(std::integral_constant<int, 1>{});
  unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
    unroll<Vecs>([&](auto v)
                     HEED_INLINE_LAMBDA { store_vec<Arch>(out + r * ldo + v * w, sum[r][v]); });
  });
}

// The panel's convolution. Each line of rows [begin - queries + 1, end) holds its input entries
// [first, last) and, behind them, the keys - 1 entries that newer panels began with.
template <class T, class Arch>
class convolution {
  static constexpr index W = width<T, Arch>;
  static constexpr int tall = 8;
  static constexpr int wide = has_32_registers<Arch> ? 2 : 1;

 public:
  // `aside`: room for a tile of every head of a group, group_size(heads) elements; not used with
  // one head a group.
  static constexpr index aside_size(index heads) noexcept { return heads * tall * wide * W; }
  convolution(const convolution_weights<T>& weights, T* aside) : weights_(weights), aside_(aside) {}

  void run(const panel<T, Arch>& p, index older) const {
    for (index g = 0; g < p.heads; g += weights_.heads) {
      index end = p.end;
      // Rows descend, so that a row is overwritten after all rows below have read it.
      const auto rows = [&](auto count) {
        end -= count;
        run_rows<decltype(count)::value>(p, g, end, older);
      };
      // Rows so near to the first row of the call that the kernel reaches above it, one by one.
      const index edge = std::clamp(weights_.queries - 1 - p.row, p.begin, p.end);
      while (end - edge >= tall) rows(std::integral_constant<int, tall>{});
      if (end - edge >= 4) rows(std::integral_constant<int, 4>{});
      while (end > p.begin) rows(std::integral_constant<int, 1>{});
    }
  }

 private:
  template <int Rows>
  void run_rows(const panel<T, Arch>& p, index g, index r, index older) const {
    const auto [from, to] = p.seen(r, r + Rows, p.column + older);
    for (index c = from; c < to;) {
      if (wide > 1 && to - c > W) {
        run_tile<Rows, wide>(p, g, r, c);
        c += wide * W;
      } else {
        run_tile<Rows, 1>(p, g, r, c);
        c += W;
      }
    }
  }
  template <int Rows, int Vecs>
  HEED_INLINE void run_tile(const panel<T, Arch>& p, index g, index r, index c) const {
    const convolution_block k{p.row_stride, weights_.queries, weights_.keys};
    const index above = weights_.queries - 1;
    const index first = std::max<index>(0, above - p.row - r);
    if (weights_.heads == 1) {
      convolve_tile<Arch, Rows, Vecs>(p.line(g, r - above) + c, weights_.at(p.head + g, 0), k,
                                      first, weights_.queries, false, p.line(g, r) + c,
                                      p.row_stride);
      return;
    }
    // All heads of the group read before one is written.
    constexpr index size = Rows * Vecs * W;
    for (index h = 0; h < weights_.heads; ++h) {
      for (index m = 0; m < weights_.heads; ++m) {
        convolve_tile<Arch, Rows, Vecs>(p.line(g + m, r - above) + c,
                                        weights_.at(p.head + g + h, m), k, first, weights_.queries,
                                        m > 0, aside_ + h * size, Vecs * W);
      }
    }
    for (index h = 0; h < weights_.heads; ++h) {
      for (index n = 0; n < Rows; ++n) {
        for (index v = 0; v < Vecs; ++v) {
          store_vec<Arch>(p.line(g + h, r + n) + c + v * W,
                          load_vec<Arch>(aside_ + h * size + (n * Vecs + v) * W));
        }
      }
    }
  }

  convolution_weights<T> weights_;
  T* aside_;
};

}  // namespace heed::inline HEED_ABI::kernel
