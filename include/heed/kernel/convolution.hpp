// Convolution of a panel over heads, queries and keys, in place and directly: no column is computed
// twice, no row is written before every row that reads it is done. And its adjoint.
#pragma once

#include "heed/kernel/reverse.hpp"
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

// Sums of one element side by side. A sum in pieces rounds less than a long one, and a tile of few
// rows waits less for its last product.
template <class Arch>
inline constexpr int partial_sums = has_32_registers<Arch> ? 3 : 1;

// The sums of Rows rows of one vector of columns, over A kernel rows. Input vectors stream through;
// the A weights of one key and the sums stay in registers.
template <class Arch, int Rows, int A, class T, int Sums>
HEED_INLINE void convolve_rows(const T* in, const T* weights, const convolution_block& k,
                               vec<T, Arch> (&sum)[Sums][Rows]) {
  for (index b = 0; b < k.keys; ++b, ++in, weights += k.ldw) {
    vec<T, Arch> weight[A];
    unroll<A>([&](auto a) HEED_INLINE_LAMBDA { weight[a] = vec<T, Arch>(weights[a]); });
    unroll<Rows + A - 1>([&](auto x) HEED_INLINE_LAMBDA {
      const vec<T, Arch> entry = load_vec<Arch>(in + x * k.ld);
      unroll<A>([&](auto a) HEED_INLINE_LAMBDA {
        constexpr int r = decltype(x)::value - decltype(a)::value;
        if constexpr (r >= 0 && r < Rows) {
          vec<T, Arch>& to = sum[a % Sums][r];
          to = multiply_add(weight[a], entry, to);
        }
      });
    });
  }
}

// One register tile over all kernel rows [first, queries), written to out (row stride ldo) or added
// to what it holds. `in` is the entry that weight (0, 0) meets in row 0, column 0; kernel rows
// before `first` meet rows that do not exist.
template <class Arch, int Rows, class T>
HEED_NOINLINE void convolve_tile(const T* in, const T* weights, const convolution_block& k,
                                 index first, index queries, bool add, T* out, index ldo) {
  constexpr int sums = partial_sums<Arch>;
  vec<T, Arch> sum[sums][Rows];
  unroll<sums>([&](auto s) HEED_INLINE_LAMBDA {
    unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA { sum[s][r] = vec<T, Arch>(T(0)); });
  });
  const auto rows = [&](auto count) HEED_INLINE_LAMBDA {
    convolve_rows<Arch, Rows, decltype(count)::value>(in + first * k.ld, weights + first, k, sum);
    first += count;
  };
  while (queries - first >= 6) rows(std::integral_constant<int, 6>{});
  while (queries - first >= 2) rows(std::integral_constant<int, 2>{});
  if (queries - first == 1) rows(std::integral_constant<int, 1>{});
  unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
    unroll<sums - 1>([&](auto s) HEED_INLINE_LAMBDA { sum[0][r] += sum[s + 1][r]; });
    if (add) sum[0][r] += load_vec<Arch>(out + r * ldo);
    store_vec<Arch>(out + r * ldo, sum[0][r]);
  });
}

// The panel's convolution. Each line of rows [begin - queries + 1, end) holds its input entries
// [first, last) and, behind them, the keys - 1 entries that newer panels began with.
template <class T, class Arch>
class convolution {
  static constexpr index W = width<T, Arch>;
  static constexpr int tall = 8;

 public:
  // `aside`: room for a tile of every head of a group, group_size(heads) elements; not used with
  // one head a group.
  static constexpr index aside_size(index heads) noexcept { return heads * tall * W; }
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
    for (index c = from; c < to; c += W) run_tile<Rows>(p, g, r, c);
  }
  template <int Rows>
  HEED_INLINE void run_tile(const panel<T, Arch>& p, index g, index r, index c) const {
    const convolution_block k{p.row_stride, weights_.queries, weights_.keys};
    const index above = weights_.queries - 1;
    const index first = std::max<index>(0, above - p.row - r);
    if (weights_.heads == 1) {
      convolve_tile<Arch, Rows>(p.line(g, r - above) + c, weights_.at(p.head + g, 0), k, first,
                                weights_.queries, false, p.line(g, r) + c, p.row_stride);
      return;
    }
    // All heads of the group read before one is written.
    constexpr index size = Rows * W;
    for (index h = 0; h < weights_.heads; ++h) {
      for (index m = 0; m < weights_.heads; ++m) {
        convolve_tile<Arch, Rows>(p.line(g + m, r - above) + c, weights_.at(p.head + g + h, m), k,
                                  first, weights_.queries, m > 0, aside_ + h * size, W);
      }
    }
    for (index h = 0; h < weights_.heads; ++h) {
      for (index n = 0; n < Rows; ++n) {
        store_vec<Arch>(p.line(g + h, r + n) + c, load_vec<Arch>(aside_ + h * size + n * W));
      }
    }
  }

  convolution_weights<T> weights_;
  T* aside_;
};

// sums[(b * queries + a) W] += lane by lane in[r + a][c] out[r][c - b], for a < A, b < Keys, Rows
// rows r and columns [from, to): the gradient of a kernel whose output's gradient is `out`.
template <class Arch, int Rows, int Keys, int A, class T>
HEED_NOINLINE void correlate_tile(const T* in, const T* out, index ld, index from, index to,
                                  T* sums, index queries) {
  constexpr index w = width<T, Arch>;
  vec<T, Arch> sum[Keys][A];
  unroll<Keys>([&](auto b) HEED_INLINE_LAMBDA {
    unroll<A>([&](auto a)
                  HEED_INLINE_LAMBDA { sum[b][a] = load_vec<Arch>(sums + (b * queries + a) * w); });
  });
  for (index c = from; c < to; c += w) {
    vec<T, Arch> right[Keys][Rows];
    unroll<Keys>([&](auto b) HEED_INLINE_LAMBDA {
      unroll<Rows>([&](auto r)
                       HEED_INLINE_LAMBDA { right[b][r] = load_vec<Arch>(out + r * ld + c - b); });
    });
    unroll<Rows + A - 1>([&](auto x) HEED_INLINE_LAMBDA {
      const vec<T, Arch> left = load_vec<Arch>(in + x * ld + c);
      unroll<A>([&](auto a) HEED_INLINE_LAMBDA {
        constexpr int r = decltype(x)::value - decltype(a)::value;
        if constexpr (r >= 0 && r < Rows) {
          unroll<Keys>([&](auto b) HEED_INLINE_LAMBDA {
            sum[b][a] = multiply_add(left, right[b][r], sum[b][a]);
          });
        }
      });
    });
  }
  unroll<Keys>([&](auto b) HEED_INLINE_LAMBDA {
    unroll<A>([&](auto a)
                  HEED_INLINE_LAMBDA { store_vec<Arch>(sums + (b * queries + a) * w, sum[b][a]); });
  });
}

// The panel's convolution the other way, on the way from the oldest panel to the newest. Both sums
// read copies with room of zeros around the rows, and the gradients of the keys - 1 entries that
// older panels ended with before them.
template <class T, class Arch>
class convolution_adjoint {
  static constexpr index W = width<T, Arch>;
  static constexpr int tall = 8;
  static constexpr int wide = has_32_registers<Arch> ? 2 : 1;
  static constexpr int sum_rows = has_32_registers<Arch> ? 8 : 6;

 public:
  convolution_adjoint() = default;
  // For `count` rows of heads [head, head + heads) and panels of at most `columns` columns; `sums`
  // of these heads as the weights lie, or null: not wanted.
  convolution_adjoint(const convolution_weights<T>& weights, index head, index heads, index count,
                      index columns, double* sums, workspace& memory)
      : weights_(weights),
        before_(round_up(weights.keys - 1, W)),
        carry_size_(heads * count * before_),
        count_(count),
        ld_(before_ + round_up(columns, W) + W),
        head_stride_(ld_ * (count + 2 * (weights.queries - 1) + tall)),
        sums_(sums) {
    flipped_ = memory.take<T>(heads * weights.heads * size());
    for (index h = 0; h < heads; ++h) {
      for (index m = 0; m < weights.heads; ++m) {
        const T* from = weights.at(head + h, m);
        T* to = flipped_ + (h / weights.heads * weights.heads + m) * weights.heads * size() +
                h % weights.heads * size();
        for (index n = 0; n < size(); ++n) to[n] = from[size() - 1 - n];
      }
    }
    carry_ = memory.take<T>(carry_size_);
    forget();
    out_ = memory.take<T>(weights.heads * head_stride_);
    if (sums == nullptr) return;
    in_ = memory.take<T>(head_stride_);
    lanes_ = memory.take<T>(size() * W);
  }

  // Nothing came of the panel before.
  void forget() noexcept {
    for (index n = 0; n < carry_size_; ++n) carry_[n] = T(0);
  }

  void run(const reverse_panel<T, Arch>& p, index older) const {
    for (index g = 0; g < p.heads; g += weights_.heads) {
      for (index h = 0; h < weights_.heads; ++h) copy_gradient(p, g, h);
      for (index m = 0; m < weights_.heads && sums_ != nullptr; ++m) {
        copy_input(p, g + m);
        for (index h = 0; h < weights_.heads; ++h) add_weights(p, g, h, m, older);
      }
      for (index m = 0; m < weights_.heads; ++m) find_input(p, g, m);
    }
  }

 private:
  index size() const noexcept { return weights_.queries * weights_.keys; }
  index above() const noexcept { return weights_.queries - 1; }
  // Row begin - above + n of a copy, at column p.first.
  T* row_of(T* copy, index n) const noexcept { return copy + n * ld_ + before_; }
  // n elements, in whole vectors.
  static HEED_INLINE void copy_line(const T* from, index n, T* to) noexcept {
    for (index c = 0; c < n; c += W) store_vec<Arch>(to + c, load_vec<Arch>(from + c));
  }
  static HEED_INLINE void set_zero(T* from, T* to) noexcept {
    for (; from < to && (to - from) % W != 0; ++from) *from = T(0);
    for (; from < to; from += W) store_vec<Arch>(from, vec<T, Arch>(T(0)));
  }

  // The lines of head g + h, behind the carry, which then takes what they end with.
  void copy_gradient(const panel<T, Arch>& p, index g, index h) const noexcept {
    const index columns = p.last - p.first, rows = p.end - p.begin;
    T* copy = out_ + h * head_stride_;
    set_zero(copy, copy + above() * ld_);
    for (index n = 0; n < rows; ++n) {
      T* to = copy + (above() + n) * ld_;
      T* carry = carry_ + ((g + h) * count_ + p.begin + n) * before_;
      copy_line(carry, before_, to);
      copy_line(p.line(g + h, p.begin + n) + p.first, columns, to + before_);
      set_zero(to + before_ + columns, to + ld_);
      copy_line(to + columns, before_, carry);
    }
    T* behind = copy + (above() + rows) * ld_;
    set_zero(behind, behind + (above() + tall) * ld_);
  }
  // What forward read of head g.
  void copy_input(const reverse_panel<T, Arch>& p, index g) const noexcept {
    const index columns = p.last - p.first, rows = p.end - p.begin + above();
    for (index n = 0; n < rows; ++n) {
      const index r = p.begin - above() + n;
      T* to = row_of(in_, n);
      if (r < 0) {
        set_zero(to, to - before_ + ld_);
        continue;
      }
      copy_line(p.kept_line(g, r) + p.first, columns, to);
      set_zero(to + columns, to - before_ + ld_);
    }
    T* behind = in_ + rows * ld_;
    set_zero(behind, behind + tall * ld_);
  }

  // dK_h[m,a,b] += sum over i, j of dZ'_h[i,j] Z_m[i - (cq-1) + a, j - b0 + b]
  void add_weights(const panel<T, Arch>& p, index g, index h, index m, index older) const {
    set_zero(lanes_, lanes_ + size() * W);
    panel<T, Arch> wider = p;
    wider.first -= weights_.keys - 1;
    for (index r = p.begin; r < p.end; r += sum_rows) {
      const auto seen = wider.seen(r, (std::min)(p.end, r + sum_rows), p.column + older);
      const index from = (std::max)(seen.from, p.first) - p.first;
      const index to = (std::min)(seen.to + weights_.keys - 1, p.last) - p.first;
      if (from >= to || seen.from >= seen.to) continue;
      const T* in = row_of(in_, r - p.begin);
      const T* out = row_of(out_ + h * head_stride_, above() + r - p.begin);
      index b = 0;
      for (; wide > 1 && b + wide <= weights_.keys; b += wide) {
        add_keys<wide>(in, out - b, from, to, lanes_ + b * weights_.queries * W);
      }
      for (; b < weights_.keys; ++b) {
        add_keys<1>(in, out - b, from, to, lanes_ + b * weights_.queries * W);
      }
    }
    double* sum = sums_ + ((g + h) * weights_.heads + m) * size();
    for (index n = 0; n < size(); ++n) {
      sum[n] += static_cast<double>(sum_lanes(load_vec<Arch>(lanes_ + n * W)));
    }
  }
  template <int Keys>
  void add_keys(const T* in, const T* out, index from, index to, T* sums) const {
    index a = 0;
    const auto rows = [&](auto count) HEED_INLINE_LAMBDA {
      correlate_tile<Arch, sum_rows, Keys, decltype(count)::value>(in + a * ld_, out, ld_, from, to,
                                                                   sums + a * W, weights_.queries);
      a += count;
    };
    while (weights_.queries - a >= 6) rows(std::integral_constant<int, 6>{});
    while (weights_.queries - a >= 2) rows(std::integral_constant<int, 2>{});
    if (weights_.queries - a == 1) rows(std::integral_constant<int, 1>{});
  }

  // dZ_m[i,j] <- sum over h, a, b of K_h[m,a,b] dZ'_h[i + (cq-1) - a, j + b0 - b]
  void find_input(const panel<T, Arch>& p, index g, index m) const {
    index r = std::max<index>(0, p.begin - above());
    const auto rows = [&](auto count) {
      find_rows<decltype(count)::value>(p, g, m, r);
      r += count;
    };
    while (p.end - r >= tall) rows(std::integral_constant<int, tall>{});
    if (p.end - r >= 4) rows(std::integral_constant<int, 4>{});
    while (r < p.end) rows(std::integral_constant<int, 1>{});
  }
  template <int Rows>
  void find_rows(const panel<T, Arch>& p, index g, index m, index r) const {
    const auto [from, to] = p.seen(r, r + Rows, p.column);
    for (index c = from; c < to; c += W) find_tile<Rows>(p, g, m, r, c);
  }
  template <int Rows>
  HEED_INLINE void find_tile(const panel<T, Arch>& p, index g, index m, index r, index c) const {
    const convolution_block k{ld_, weights_.queries, weights_.keys};
    const T* kernels = flipped_ + (g + m) * weights_.heads * size();
    const index column = c - p.first - (weights_.keys - 1);
    for (index h = 0; h < weights_.heads; ++h) {
      convolve_tile<Arch, Rows>(row_of(out_ + h * head_stride_, r - p.begin + above()) + column,
                                kernels + h * size(), k, 0, weights_.queries, h > 0,
                                p.line(g + m, r) + c, p.row_stride);
    }
  }

  convolution_weights<T> weights_{};
  index before_ = 0;  // columns before a line
  index carry_size_ = 0, count_ = 0, ld_ = 0, head_stride_ = 0;
  double* sums_ = nullptr;
  T* flipped_ = nullptr;  // [heads in][heads out of the group][keys][queries], in reverse order
  T* carry_ = nullptr;    // [heads][count][before]
  T *out_ = nullptr, *in_ = nullptr;
  T* lanes_ = nullptr;  // [keys][queries][W]
};

}  // namespace heed::inline HEED_ABI::kernel
