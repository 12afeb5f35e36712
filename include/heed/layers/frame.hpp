// What every layer has around its mechanisms:
//
//   x -> q, k, v (head_projection.hpp) | attention | output norm, output gate, output projection
#pragma once

#include "heed/layers/gate.hpp"
#include "heed/layers/head_projection.hpp"

namespace heed::inline HEED_ABI::layers {

// The sizes of a layer. head_dim 0: model_dim / heads.
struct layer_sizes {
  index model_dim = 0, heads = 0, kv_heads = 0, head_dim = 0;

  // With defaults filled in. Throws shape_error for sizes that make no layer.
  layer_sizes checked() const {
    layer_sizes s = *this;
    const auto refuse = [](const std::string& what) { throw shape_error("heed: layer: " + what); };
    if (s.model_dim < 1)
      refuse("model_dim is " + std::to_string(s.model_dim) + ", expected above 0");
    if (s.heads < 1) refuse("heads is " + std::to_string(s.heads) + ", expected above 0");
    if (s.kv_heads == 0) s.kv_heads = s.heads;
    if (s.kv_heads < 1 || s.heads % s.kv_heads != 0) {
      refuse("kv_heads is " + std::to_string(s.kv_heads) +
             ", expected a divisor of heads = " + std::to_string(s.heads));
    }
    if (s.head_dim == 0) {
      if (s.model_dim % s.heads != 0) {
        refuse("model_dim is " + std::to_string(s.model_dim) + ", expected a multiple of heads = " +
               std::to_string(s.heads) + " where head_dim is not given");
      }
      s.head_dim = s.model_dim / s.heads;
    }
    if (s.head_dim < 1) refuse("head_dim is " + std::to_string(s.head_dim) + ", expected above 0");
    return s;
  }
  index features() const noexcept { return heads * head_dim; }
  index kv_features() const noexcept { return kv_heads * head_dim; }
};

// What a frame has beside its projections.
struct frame_options {
  bool qkv_bias = false, output_bias = false;
  bool qk_norm = false;
  norm_weight qk_norm_weight = norm_weight::shared;
  double qk_norm_eps = 1e-5;
  bool key_shift = false, value_shift = false;
  bool output_norm = false;  // a weight for each head
  double output_norm_eps = 1e-6;
  bool output_gate = false;
  gate_activation activation = gate_activation::sigmoid;
};

template <class T>
struct layer_frame {
  layer_sizes sizes;
  head_projection<T> query, key, value;
  rms_norm<T> output_norm;
  output_gate<T> gate;
  projection<T> output;

  struct tape {
    buffer<T> x;  // where the caller's rows are not contiguous
    typename head_projection<T>::tape query, key, value;
    buffer<T> out, lse;  // of attend: [N, heads D], [N, heads]
    buffer<T> normed, gated;
    typename output_gate<T>::tape gate;
    buffer<T> gradient;  // of out and what is made of it
  };

  layer_frame() = default;
  // Throws shape_error for sizes that make no layer.
  layer_frame(const layer_sizes& s, const frame_options& o) : sizes(s.checked()) {
    const index dim = sizes.model_dim, D = sizes.head_dim;
    query.linear = {dim, sizes.features(), o.qkv_bias};
    key.linear = {dim, sizes.kv_features(), o.qkv_bias};
    value.linear = {dim, sizes.kv_features(), o.qkv_bias};
    if (o.qk_norm) {
      query.norm = {sizes.heads, D, o.qk_norm_weight, o.qk_norm_eps};
      key.norm = {sizes.kv_heads, D, o.qk_norm_weight, o.qk_norm_eps};
    }
    if (o.key_shift) key.shift = {dim, sizes.kv_heads};
    if (o.value_shift) value.shift = {dim, sizes.kv_heads};
    if (o.output_norm) output_norm = {sizes.heads, D, norm_weight::per_head, o.output_norm_eps};
    if (o.output_gate) gate = {dim, sizes.features(), o.activation};
    output = {sizes.features(), dim, o.output_bias};
  }

  void each_parameter(const parameter_visitor<T>& f) {
    query.each_parameter("query", f);
    key.each_parameter("key", f);
    value.each_parameter("value", f);
    output_norm.each_parameter("output_norm", f);
    gate.each_parameter("output_gate", f);
    output.each_parameter("output", f);
  }

  // Behind attention: kept.out -> y [N, model_dim].
  void finish(const tensor_view<const T, 2>& x, const tensor_view<T, 2>& y, tape& kept,
              const layer_context<T>& context, bool backward_follows) const {
    buffer<T>* at = &kept.out;
    if (output_norm.exists()) {
      buffer<T>& to = backward_follows ? kept.normed : *at;
      output_norm.forward(*at, to, context);
      at = &to;
    }
    if (gate.exists()) {
      buffer<T>& to = backward_follows ? kept.gated : *at;
      gate.forward(x, *at, to, kept.gate, context);
      at = &to;
    }
    output.forward(std::as_const(*at).matrix(), y, context);
  }
  // kept.gradient becomes the gradient of kept.out; dx += what comes through the gate.
  void finish_backward(const tensor_view<const T, 2>& x, const tensor_view<const T, 2>& dy,
                       const tensor_view<T, 2>& dx, tape& kept, const layer_context<T>& context) {
    const buffer<T>& before_gate = output_norm.exists() ? kept.normed : kept.out;
    const buffer<T>& last = gate.exists() ? kept.gated : before_gate;
    kept.gradient.resize_zero(x.extent(0), sizes.features());
    output.backward(last.matrix(), dy, kept.gradient.matrix(), context);
    if (gate.exists()) gate.backward(x, before_gate, kept.gradient, dx, kept.gate, context);
    if (output_norm.exists()) output_norm.backward(kept.out, kept.gradient);
  }
};

}  // namespace heed::inline HEED_ABI::layers
