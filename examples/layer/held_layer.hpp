// A layer of one kind as an any_layer.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "any_layer.hpp"
#include "heed/multi_head.hpp"

namespace layer_program {

template <class Layer>
class held_layer final : public any_layer<typename Layer::value_type> {
 public:
  using T = typename Layer::value_type;
  using base = any_layer<T>;
  using typename base::input;
  using typename base::output;
  using typename base::parameter;

  held_layer(Layer layer, std::span<const heed::layers::parameter_name> names)
      : layer_(std::move(layer)), names_(names) {}

  std::span<const heed::layers::parameter_name> names() const override { return names_; }
  std::vector<parameter> parameters() override { return layer_.parameters(); }
  void zero_gradients() override { layer_.zero_gradients(); }
  void initialize(std::uint64_t seed) override { layer_.initialize(seed); }

  void infer(const input& x, const output& y) override { layer_.forward(x, y, options()); }
  void forward(const input& x, const output& y) override { layer_.forward(x, y, tape_, options()); }
  void backward(const input& x, const input& dy, const output& dx) override {
    layer_.backward(x, dy, dx, tape_, options());
  }
  void start(heed::index sequences, heed::index capacity) override {
    cache_.emplace(layer_.make_cache(sequences, capacity, options()));
  }
  void decode(const input& x, const output& y, std::span<const heed::index> sequences) override {
    layer_.decode(x, y, *cache_, sequences, options());
  }
  heed::index length(heed::index sequence) const override { return cache_->length(sequence); }
  void reset(heed::index sequence) override { cache_->reset(sequence); }
  void fork(heed::index from, heed::index to) override { cache_->fork(from, to); }

 private:
  heed::layer_options<T> options() const { return {.executor = this->executor}; }

  Layer layer_;
  std::span<const heed::layers::parameter_name> names_;
  typename Layer::tape tape_;
  std::optional<typename Layer::template cache<>> cache_;
};

template <class Layer>
std::unique_ptr<any_layer<typename Layer::value_type>> hold(
    Layer layer, std::span<const heed::layers::parameter_name> names) {
  return std::make_unique<held_layer<Layer>>(std::move(layer), names);
}

}  // namespace layer_program
