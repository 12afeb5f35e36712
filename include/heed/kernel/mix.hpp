// Linear combinations of the heads of a panel, entry by entry, in place.
#pragma once

#include "heed/kernel/reverse.hpp"
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
          sum = multiply_add(weight[out][in + 1], entry[in + 1], sum);
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

// lanes[(o * group + i) W] += lane by lane out_o in_i, Out heads o times In heads i, over whole
// vectors of `columns` columns of one row.
template <int Out, int In, class Arch, class T>
HEED_NOINLINE void mix_products(const T* out, const T* in, index head_stride, index columns,
                                T* lanes, index group) {
  constexpr index w = width<T, Arch>;
  vec<T, Arch> sum[Out][In];
  unroll<Out>([&](auto o) HEED_INLINE_LAMBDA {
    unroll<In>([&](auto i)
                   HEED_INLINE_LAMBDA { sum[o][i] = load_vec<Arch>(lanes + (o * group + i) * w); });
  });
  for (index c = 0; c + w <= columns; c += w) {
    vec<T, Arch> right[In];
    unroll<In>([&](auto i)
                   HEED_INLINE_LAMBDA { right[i] = load_vec<Arch>(in + i * head_stride + c); });
    unroll<Out>([&](auto o) HEED_INLINE_LAMBDA {
      const vec<T, Arch> left = load_vec<Arch>(out + o * head_stride + c);
      unroll<In>([&](auto i)
                     HEED_INLINE_LAMBDA { sum[o][i] = multiply_add(left, right[i], sum[o][i]); });
    });
  }
  unroll<Out>([&](auto o) HEED_INLINE_LAMBDA {
    unroll<In>([&](auto i)
                   HEED_INLINE_LAMBDA { store_vec<Arch>(lanes + (o * group + i) * w, sum[o][i]); });
  });
}

// The gradient of the weights of mix_heads: for every group, sums[(g + o) * group + i] += sum over
// rows and columns of (what came out's gradient)_(g + o) (what went in)_(g + i). lanes: group^2
// vectors.
template <class T, class Arch>
void add_mix_weights(const reverse_panel<T, Arch>& p, index group, T* lanes, double* sums) {
  constexpr index w = width<T, Arch>;
  constexpr int most = has_32_registers<Arch> ? 4 : 2;
  const index columns = p.last - p.first, whole = columns / w * w;
  // f(from, count) for heads of the group, 4, 2 or 1 at a time, the count a constant.
  const auto in_fours = [&](const auto& f) {
    index n = 0;
    for (; n + 4 <= group; n += 4) f(n, std::integral_constant<int, 4>{});
    for (; n + 2 <= group; n += 2) f(n, std::integral_constant<int, 2>{});
    if (n < group) f(n, std::integral_constant<int, 1>{});
  };
  for (index g = 0; g < p.heads; g += group) {
    double* sum = sums + g * group;
    for (index n = 0; n < group * group * w; ++n) lanes[n] = T(0);
    for (index r = p.begin; r < p.end; ++r) {
      const T* out = p.line(g, r) + p.first;
      const T* in = p.kept_line(g, r) + p.first;
      in_fours([&](index o, auto outs) {
        const auto run = [&](index i, auto ins) {
          mix_products<decltype(outs)::value, decltype(ins)::value, Arch>(
              out + o * p.head_stride, in + i * p.head_stride, p.head_stride, columns,
              lanes + (o * group + i) * w, group);
        };
        in_fours([&](index i, auto ins) {
          constexpr int n = decltype(ins)::value, step = n < most ? n : most;
          for (index at = i; at < i + n; at += step) run(at, std::integral_constant<int, step>{});
        });
      });
      for (index c = whole; c < columns; ++c) {
        for (index o = 0; o < group; ++o) {
          for (index i = 0; i < group; ++i) {
            sum[o * group + i] +=
                static_cast<double>(out[o * p.head_stride + c] * in[i * p.head_stride + c]);
          }
        }
      }
    }
    for (index n = 0; n < group * group; ++n) {
      sum[n] += static_cast<double>(sum_lanes(load_vec<Arch>(lanes + n * w)));
    }
  }
}

}  // namespace heed::inline HEED_ABI::kernel
