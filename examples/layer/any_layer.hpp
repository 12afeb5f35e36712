// A layer of any kind behind one interface, so that each kind is compiled once and nothing else
// needs to know its type.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "heed/layers/names.hpp"
#include "heed/layers/parameter.hpp"
#include "heed/parallel.hpp"

namespace layer_program {

template <class T>
class any_layer {
 public:
  using input = heed::tensor_view<const T, 3>;  // [B, T, model_dim]
  using output = heed::tensor_view<T, 3>;
  using parameter = heed::layers::parameter_view<T>;

  // Who runs the tasks of the calls below.
  heed::executor_ref executor = {};

  virtual ~any_layer() = default;
  // The official names of its parameters.
  virtual std::span<const heed::layers::parameter_name> names() const = 0;
  virtual std::vector<parameter> parameters() = 0;
  virtual void zero_gradients() = 0;
  virtual void initialize(std::uint64_t seed) = 0;

  virtual void infer(const input& x, const output& y) = 0;
  // backward follows forward.
  virtual void forward(const input& x, const output& y) = 0;
  virtual void backward(const input& x, const input& dy, const output& dx) = 0;
  // An empty cache for some sequences, with room for `capacity` tokens of each; decode goes on with
  // those named, or with all.
  virtual void start(heed::index sequences, heed::index capacity = 0) = 0;
  virtual void decode(const input& x, const output& y,
                      std::span<const heed::index> sequences = {}) = 0;
  virtual heed::index length(heed::index sequence) const = 0;
  virtual void reset(heed::index sequence) = 0;
  virtual void fork(heed::index from, heed::index to) = 0;
};

}  // namespace layer_program
