// Gate on a layer's output, from the layer's input.
//
//   o <- o sigmoid(z)   or   o <- o z sigmoid(z) (SiLU),        z = W x (+ b)
#pragma once

#include "heed/kernel/norm.hpp"
#include "heed/layers/projection.hpp"

namespace heed::inline HEED_ABI::layers {

enum class gate_activation { sigmoid, silu };

template <class T>
struct output_gate {
  projection<T> logits;  // [heads Dv, model_dim]
  gate_activation activation = gate_activation::sigmoid;
  struct tape {
    buffer<T> z, dz;
  };

  output_gate() = default;
  output_gate(index model_dim, index features, gate_activation a, bool with_bias = false)
      : logits(model_dim, features, with_bias), activation(a) {}
  bool exists() const noexcept { return logits.exists(); }
  void each_parameter(const std::string& name, const parameter_visitor<T>& f) {
    logits.each_parameter(name, f);
  }

  // x [N, model_dim], o [N, features] -> gated, which may be o.
  void forward(const tensor_view<const T, 2>& x, const buffer<T>& o, buffer<T>& gated, tape& kept,
               const layer_context<T>& context) const {
    kept.z.resize(o.rows(), o.cols());
    gated.resize(o.rows(), o.cols());
    logits.forward(x, kept.z.matrix(), context);
    context.for_rows(o.rows(), [&](index begin, index end) {
      const index size = (end - begin) * o.cols();
      if (&o != &gated) std::copy_n(o.row(begin), size, gated.row(begin));
      if (activation == gate_activation::sigmoid) {
        kernel::gate_row<kernel::default_arch>(gated.row(begin), size, kept.z.row(begin));
      } else {
        kernel::silu_gate_row<kernel::default_arch>(gated.row(begin), size, kept.z.row(begin));
      }
    });
  }
  // o as forward got it; the gradient of the gated output becomes that of o; dx += W^T dz.
  void backward(const tensor_view<const T, 2>& x, const buffer<T>& o, buffer<T>& gradient,
                const tensor_view<T, 2>& dx, tape& kept, const layer_context<T>& context) {
    kept.dz.resize(o.rows(), o.cols());
    std::copy_n(kept.z.data(), o.size(), kept.dz.data());
    if (activation == gate_activation::sigmoid) {
      kernel::gate_row_backward<kernel::default_arch>(o.data(), o.size(), kept.dz.data(),
                                                      gradient.data());
    } else {
      kernel::silu_gate_row_backward<kernel::default_arch>(o.data(), o.size(), kept.dz.data(),
                                                           gradient.data());
    }
    logits.backward(x, std::as_const(kept.dz).matrix(), dx, context);
  }
};

}  // namespace heed::inline HEED_ABI::layers
