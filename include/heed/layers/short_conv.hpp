// Causal depthwise convolution over the last W tokens, then SiLU.
//
//   u_t,c = bias_c + sum over m < W of weight_c,m r_(t - (W - 1) + m),c       r before the
//   y_t,c = u_t,c sigmoid(u_t,c)                                              sequence is 0
//
// The last tap is the token itself. As in flash-linear-attention's ShortConvolution.
#pragma once

#include "heed/kernel/norm.hpp"
#include "heed/layers/context.hpp"
#include "heed/layers/parameter.hpp"
#include "heed/layers/state.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
struct short_convolution {
  parameter<T> weight;  // [C, 1, W]
  parameter<T> bias;    // [C]
  struct tape {
    buffer<T> taps;  // [W, C]
    buffer<T> u, du, dtaps;
  };

  short_convolution() = default;
  // Throws shape_error unless it spans at least one token.
  short_convolution(index channels, index span, bool with_bias)
      : weight({channels, 1, span}, 0, 1 / std::sqrt(static_cast<double>(span))) {
    if (span < 1) {
      throw shape_error("heed: short_convolution: spans " + std::to_string(span) +
                        " tokens, expected at least 1");
    }
    if (with_bias) bias = parameter<T>({channels});
  }
  bool exists() const noexcept { return weight.exists(); }
  index channels() const noexcept { return weight.shape[0]; }
  index span() const noexcept { return weight.shape[2]; }
  void each_parameter(const std::string& name, const parameter_visitor<T>& f) {
    visit_parameter(f, name + ".weight", weight);
    visit_parameter(f, name + ".bias", bias);
  }

  // r [N, C] -> y [N, C]. With `history`, of W - 1 rows for each sequence, tokens go on from there.
  void forward(const buffer<T>& r, buffer<T>& y, token_rows rows, tape& kept,
               const layer_context<T>& context, history_rows<T> history) const {
    const index C = channels();
    take_taps(kept.taps);
    kept.u.resize(rows.count(), C);
    y.resize(rows.count(), C);
    context.for_rows(rows.count(), [&](index begin, index end) {
      for (index n = begin; n < end; ++n) {
        convolve(r, n, rows, kept.taps, history, kept.u.row(n));
        std::copy_n(kept.u.row(n), C, y.row(n));
      }
      kernel::gate_row<kernel::default_arch>(y.row(begin), (end - begin) * C, kept.u.row(begin));
    });
    history.keep(r, rows);
  }
  // The gradient of y becomes that of r. Sequences from their start.
  void backward(const buffer<T>& r, buffer<T>& gradient, token_rows rows, tape& kept) {
    const index C = channels(), W = span(), N = rows.count();
    weight.need_gradient();
    bias.need_gradient();
    kept.du.resize(N, C);
    std::copy_n(kept.u.data(), N * C, kept.du.data());
    kernel::gate_row_backward<kernel::default_arch>(kept.u.data(), N * C, kept.du.data(),
                                                    gradient.data());
    for (index n = 0; n < N * C; ++n) kept.du.data()[n] += gradient.data()[n];
    std::vector<double> dtaps(static_cast<std::size_t>(W * C)), dbias(bias.value.size());
    for (index n = 0; n < N; ++n) {
      const T* du = kept.du.row(n);
      const index t = n % rows.tokens;
      for (std::size_t c = 0; c < dbias.size(); ++c) dbias[c] += static_cast<double>(du[c]);
      std::fill_n(gradient.row(n), C, T(0));
      for (index m = (std::max)(index{0}, W - 1 - t); m < W; ++m) {
        const index from = n - (W - 1) + m;
        const T *taps = kept.taps.row(m), *in = r.row(from);
        T* out = gradient.row(from);
        double* sums = dtaps.data() + m * C;
        for (index c = 0; c < C; ++c) {
          sums[c] += static_cast<double>(du[c]) * static_cast<double>(in[c]);
          out[c] += taps[c] * du[c];
        }
      }
    }
    for (index c = 0; c < C; ++c) {
      for (index m = 0; m < W; ++m) {
        weight.gradient[static_cast<std::size_t>(c * W + m)] +=
            static_cast<T>(dtaps[static_cast<std::size_t>(m * C + c)]);
      }
    }
    for (std::size_t c = 0; c < dbias.size(); ++c) bias.gradient[c] += static_cast<T>(dbias[c]);
  }

 private:
  void take_taps(buffer<T>& taps) const {
    taps.resize(span(), channels());
    const T* from = weight.value.data();
    for (index c = 0; c < channels(); ++c) {
      for (index m = 0; m < span(); ++m) taps.row(m)[c] = *from++;
    }
  }
  void convolve(const buffer<T>& r, index n, token_rows rows, const buffer<T>& taps,
                history_rows<T> history, T* u) const {
    const index C = channels(), W = span(), b = n / rows.tokens, t = n % rows.tokens;
    for (index c = 0; c < C; ++c) {
      u[c] = bias.exists() ? bias.value[static_cast<std::size_t>(c)] : T(0);
    }
    for (index m = 0; m < W; ++m) {
      const index at = t - (W - 1) + m;  // in the chunk, or -1, -2 .. before it
      if (at < 0 && !history.given()) continue;
      const T* in = at >= 0 ? r.row(n - t + at) : history.row(b, W - 1 + at);
      const T* tap = taps.row(m);
      for (index c = 0; c < C; ++c) u[c] += tap[c] * in[c];
    }
  }
};

}  // namespace heed::inline HEED_ABI::layers
