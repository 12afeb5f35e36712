// PaTH in a layer: its directions and step sizes.
//
//   w = normalise(conv(r)),  r = W_w x    per key head; w / sqrt(sum of w^2 + eps)
//   beta = 2 sigmoid(W_b x + b)           one per key head
//
// W_w may be a product of two matrices of low rank; the convolution (short_conv.hpp, with its SiLU)
// may be missing. Yang et al., PaTH Attention, arXiv 2505.16381.
#pragma once

#include <tuple>

#include "heed/kernel/reverse.hpp"
#include "heed/layers/frame.hpp"
#include "heed/layers/short_conv.hpp"
#include "heed/mechanisms/path.hpp"

namespace heed::inline HEED_ABI::layers {

struct path_part_options {
  index rank = 32;      // of the map to directions; 0: a full matrix
  index conv_span = 3;  // tokens that the short convolution spans; 0: none
  bool conv_bias = false;
};

template <class T>
struct path_part {
  low_rank_projection<T> direction;
  short_convolution<T> conv;
  projection<T> step;
  double eps = 1e-6;
  struct tape {
    typename low_rank_projection<T>::tape direction;
    typename short_convolution<T>::tape conv;
    buffer<T> raw, mixed, w, dw;  // [N, kv_heads D]; mixed: behind the convolution
    buffer<T> z, beta, dbeta;     // [N, kv_heads]
    buffer<T> ones;               // [D]: the norm has no weight
  };

  path_part() = default;
  path_part(const layer_sizes& s, const path_part_options& o)
      : direction(s.model_dim, s.kv_features(), o.rank), step(s.model_dim, s.kv_heads, true) {
    if (o.conv_span > 0) conv = {s.kv_features(), o.conv_span, o.conv_bias};
  }

  // direction_down.weight, direction.weight, direction_conv.weight, direction_conv.bias,
  // step.weight, step.bias.
  void each_parameter(const parameter_visitor<T>& f) {
    direction.each_parameter("direction", f);
    conv.each_parameter("direction_conv", f);
    step.each_parameter("step", f);
  }
  void check(const layer_sizes& s) const {
    if (direction.exists() && direction.out() == s.kv_features() && step.out() == s.kv_heads) {
      return;
    }
    throw shape_error("heed: path_part: was made for a layer of other sizes");
  }
  row_history<T> history(index sequences) const {
    return conv.exists() ? row_history<T>(sequences, conv.span() - 1, conv.channels())
                         : row_history<T>();
  }

  void forward(const tensor_view<const T, 2>& x, token_rows rows, tape& kept,
               const layer_context<T>& context, history_rows<T> history) const {
    kept.raw.resize(rows.count(), direction.out());
    direction.forward(x, kept.raw.matrix(), kept.direction, context);
    if (conv.exists()) conv.forward(kept.raw, kept.mixed, rows, kept.conv, context, history);
    const buffer<T>& from = conv.exists() ? kept.mixed : kept.raw;
    kept.w.resize(rows.count(), from.cols());
    const index D = head_dim();
    kept.ones.resize(1, D);
    std::fill_n(kept.ones.data(), D, T(1));
    context.for_rows(rows.count(), [&](index begin, index end) {
      std::copy_n(from.row(begin), (end - begin) * from.cols(), kept.w.row(begin));
      for (T* line = kept.w.row(begin); line != kept.w.row(end); line += D) {
        kernel::rms_norm_row(line, D, std::as_const(kept.ones).data(), mean_eps(), per_mean());
      }
    });
    kept.z.resize(rows.count(), step.out());
    kept.beta.resize(rows.count(), step.out());
    step.forward(x, kept.z.matrix(), context);
    path_betas(std::as_const(kept.z).per_head(1, rows.count()),
               kept.beta.per_head(1, rows.count()));
  }
  std::tuple<path<T>> mechanisms(const tape& kept, token_rows rows) const {
    path<T> mechanism;
    mechanism.w = kept.w.heads(rows.batch, rows.tokens, step.out());
    mechanism.beta = kept.beta.per_head(rows.batch, rows.tokens);
    return mechanism;
  }
  auto with_gradients(tape& kept, token_rows rows) {
    kept.dw.resize_zero(rows.count(), kept.w.cols());
    kept.dbeta.resize_zero(rows.count(), step.out());
    return std::tuple(with_grad(std::get<0>(mechanisms(kept, rows)),
                                {.w = kept.dw.heads(rows.batch, rows.tokens, step.out()),
                                 .beta = kept.dbeta.per_head(rows.batch, rows.tokens)}));
  }
  // dz = dbeta 2 sigmoid(z) (1 - sigmoid(z))
  void backward(const tensor_view<const T, 2>& x, token_rows rows, const tensor_view<T, 2>& dx,
                tape& kept, const layer_context<T>& context) {
    for (index n = 0; n < kept.z.size(); ++n) {
      const double e = std::exp(-std::abs(static_cast<double>(kept.z.data()[n])));
      kept.dbeta.data()[n] *= static_cast<T>(2 * e / ((1 + e) * (1 + e)));
    }
    step.backward(x, std::as_const(kept.dbeta).matrix(), dx, context);
    const buffer<T>& from = conv.exists() ? kept.mixed : kept.raw;
    const index D = head_dim();
    for (index n = 0; n < from.size(); n += D) {
      kernel::rms_norm_row_backward(from.data() + n, D, std::as_const(kept.ones).data(), mean_eps(),
                                    per_mean(), kept.dw.data() + n, static_cast<double*>(nullptr));
    }
    if (conv.exists()) conv.backward(kept.raw, kept.dw, rows, kept.conv);
    direction.backward(x, std::as_const(kept.dw).matrix(), dx, kept.direction, context);
  }

 private:
  index head_dim() const noexcept { return direction.out() / step.out(); }
  // A norm over the sum of squares is one over their mean.
  double mean_eps() const noexcept { return eps / static_cast<double>(head_dim()); }
  double per_mean() const noexcept { return 1 / std::sqrt(static_cast<double>(head_dim())); }
};

}  // namespace heed::inline HEED_ABI::layers
