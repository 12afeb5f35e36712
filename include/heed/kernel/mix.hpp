// Linear combinations of the heads of a panel, entry by entry, in place.
#pragma once

#include "heed/kernel/panel.hpp"
#include "heed/kernel/tile.hpp"

namespace heed::inline HEED_ABI::kernel {

// Columns that mix_heads sets aside at a time.
template <class T, class Arch>
inline constexpr index mix_columns = 2 * strip_width<T, Arch>;

// Few heads: all inputs of a vector of columns in registers.
template <int Heads, class T, class Arch>
HEED_NOINLINE void mix_few(const panel<T, Arch>& p, const T* weights, index g) {
  vec<T, Arch> weight[Heads][Heads];
  unroll<Heads>([&](auto out) HEED_INLINE_LAMBDA {
    unroll<Heads>([&](auto in) HEED_INLINE_LAMBDA { weight[out][in] = weights[out * Heads + in]; });
  });
  for (index r = p.begin; r < p.end; ++r) {
    T* line = p.line(g, r);
    for (index c = p.first; c < p.last; c += width<T, Arch>) {
      vec<T, Arch> entry[Heads];
      unroll<Heads>([&](auto in) HEED_INLINE_LAMBDA {
        entry[in] = load_vec<Arch>(line + in * p.head_stride + c);
      });
      unroll<Heads>([&](auto out) HEED_INLINE_LAMBDA {
        vec<T, Arch> sum = weight[out][0] * entry[0];
        unroll<Heads - 1>([&](auto in) HEED_INLINE_LAMBDA {
          sum = xsimd::fma(weight[out][in + 1], entry[in + 1], sum);
        });
        store_vec<Arch>(line + out * p.head_stride + c, sum);
      });
    }
  }
}

// Any number of heads: the inputs are copied aside and multiplied by the matrix.
template <class T, class Arch>
void mix_many(const panel<T, Arch>& p, const T* weights, index g, index heads, T* aside) {
  constexpr index w = width<T, Arch>;
  constexpr index most = mix_columns<T, Arch>;
  for (index r = p.begin; r < p.end; ++r) {
    for (index c = p.first; c < p.last; c += most) {
      const index columns = (std::min)(most, p.last - c);
      for (index in = 0; in < heads; ++in) {
        const T* line = p.line(g + in, r) + c;
        for (index n = 0; n < columns; n += w) {
          store_vec<Arch>(aside + in * most + n, load_vec<Arch>(line + n));
        }
      }
      product<Arch>(weights, heads, aside, most, p.line(g, r) + c, p.head_stride, heads, columns,
                    heads, start::zero);
    }
  }
}

// Heads g, g + group ...: head g + o <- sum over r of weights[(g + o) * group + r] times head g + r
// for every group of the panel. aside: group * mix_columns elements.
template <class T, class Arch>
void mix_heads(const panel<T, Arch>& p, const T* weights, index group, T* aside) {
  for (index g = 0; g < p.heads; g += group) {
    const T* own = weights + g * group;
    if (group == 2) {
      mix_few<2>(p, own, g);
    } else if (group == 4 && has_32_registers<Arch>) {
      mix_few<4>(p, own, g);
    } else {
      mix_many(p, own, g, group, aside);
    }
  }
}

}  // namespace heed::inline HEED_ABI::kernel
