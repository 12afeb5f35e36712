// Queries, keys or values of a layer: a linear map, then where the layer has them a shift by one
// token and a norm of each head, in this order.
#pragma once

#include "heed/layers/norm.hpp"
#include "heed/layers/projection.hpp"
#include "heed/layers/shift.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
struct head_projection {
  projection<T> linear;
  token_shift<T> shift;
  rms_norm<T> norm;
  struct tape {
    buffer<T> raw, shifted, normed, gradient;
    typename token_shift<T>::tape shift;
  };

  index features() const noexcept { return linear.out(); }
  // NAME.weight, NAME.bias, NAME_shift.weight, NAME_norm.weight.
  void each_parameter(const std::string& name, const parameter_visitor<T>& f) {
    linear.each_parameter(name, f);
    shift.each_parameter(name + "_shift", f);
    norm.each_parameter(name + "_norm", f);
  }

  // x [N, model_dim] -> result(kept) [N, features]. `backward_follows`: what it reads is kept.
  void forward(const tensor_view<const T, 2>& x, token_rows rows, tape& kept,
               const layer_context<T>& context, bool backward_follows,
               history_rows<T> history = {}) const {
    kept.raw.resize(rows.count(), features());
    linear.forward(x, kept.raw.matrix(), context);
    buffer<T>* at = &kept.raw;
    if (shift.exists()) {
      shift.forward(x, kept.raw, kept.shifted, rows, kept.shift, context, history);
      at = &kept.shifted;
    }
    if (!norm.exists()) return;
    // Where a norm goes in place, result() looks at the buffer behind it none the less.
    if (backward_follows) {
      norm.forward(*at, kept.normed, context);
    } else {
      norm.forward(*at, *at, context);
      std::swap(*at, kept.normed);
    }
  }
  buffer<T>& result(tape& kept) const noexcept {
    return norm.exists() ? kept.normed : shift.exists() ? kept.shifted : kept.raw;
  }

  // kept.gradient holds the gradient of the result, and is used up; dx += what comes through.
  void backward(const tensor_view<const T, 2>& x, token_rows rows, const tensor_view<T, 2>& dx,
                tape& kept, const layer_context<T>& context) {
    if (norm.exists()) norm.backward(shift.exists() ? kept.shifted : kept.raw, kept.gradient);
    if (shift.exists()) {
      shift.backward(x, kept.raw, kept.gradient, rows, dx, kept.shift, context);
    }
    linear.backward(x, std::as_const(kept.gradient).matrix(), dx, context);
  }
};

}  // namespace heed::inline HEED_ABI::layers
