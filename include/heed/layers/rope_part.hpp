// RoPE in a layer: nothing to learn.
#pragma once

#include <tuple>

#include "heed/layers/frame.hpp"
#include "heed/mechanisms/rope.hpp"

namespace heed::inline HEED_ABI::layers {

// A part of a layer brings a mechanism, and with it the parameters and projections that the
// mechanism needs. MultiHeadAttention asks it for
//
//   tape                                      what it makes of the tokens of a call
//   each_parameter(f)                         f(name, parameter) for what it learns
//   check(sizes)                              throws shape_error where it does not fit the layer
//   history(sequences)                        rows it remembers while decoding, if any
//   forward(x, rows, tape, context, history)
//   mechanisms(tape, rows)                    -> tuple of mechanisms for attend
//   with_gradients(tape, rows)                -> the same for attend_grad, gradients set to 0
//   backward(x, rows, dx, tape, context)      behind attend_grad: adds to dx and to gradients
template <class T>
struct rope_part {
  heed::rope mechanism = {};
  struct tape {};

  void each_parameter(const parameter_visitor<T>&) {}
  void check(const layer_sizes&) const {}
  row_history<T> history(index) const { return {}; }
  void forward(const tensor_view<const T, 2>&, token_rows, tape&, const layer_context<T>&,
               history_rows<T>) const {}
  auto mechanisms(const tape&, token_rows) const { return std::tuple(mechanism); }
  auto with_gradients(tape&, token_rows) { return std::tuple(mechanism); }
  void backward(const tensor_view<const T, 2>&, token_rows, const tensor_view<T, 2>&, tape&,
                const layer_context<T>&) {}
};

}  // namespace heed::inline HEED_ABI::layers
