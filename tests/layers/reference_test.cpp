// The published layers, and two compositions of their parts, against plain loops.
#include "heed/reference/layers.hpp"

#include "catch.hpp"
#include "layer/kinds.hpp"
#include "layers/check_layer.hpp"

namespace heed_test {
namespace {

namespace layers = heed::layers;
namespace reference = heed::reference;
using tensors = reference::layer_tensors<double>;

// The reference of a layer with these options.
template <class Options>
layer_reference with(void (*layer)(const Options&, const tensors&, const tokens_view&,
                                   const output_view&),
                     const Options& o) {
  return [layer, o](const tensors& p, const tokens_view& x, const output_view& y) {
    layer(o, p, x, y);
  };
}

void check(any_layer& layer, const layer_reference& expected, heed::index model_dim,
           std::uint64_t seed, double step = 1e-4) {
  CAPTURE(seed);
  layer_check small(layer, expected, 2, 7, model_dim, seed);
  small.forward();
  small.gradients(1e-8, step);
  small.decode({1});
  small.decode({3, 1});
  layer_check longer(layer, expected, 1, 40, model_dim, seed);
  longer.forward();
  longer.decode({17, 1, 1, 2});
}

}  // namespace

TEST_CASE("layer: path") {
  for (const bool full : {false, true}) {
    layers::path_attention_options o{.model_dim = 12, .heads = 4, .kv_heads = 2};
    o.low_rank_w = !full;
    o.conv_size = full ? 4 : 0;
    o.conv_bias = full;
    o.forget_gate = full;
    o.qk_norm = !full;
    const auto layer = layer_program::make_layer<double>(o);
    check(*layer, with(reference::path_attention<double>, o), 12, full ? 1 : 2);
  }
}

TEST_CASE("layer: path with the gate outside the scale") {
  const layers::path_attention_options o{.model_dim = 18,
                                         .heads = 3,
                                         .conv_size = 2,
                                         .forget_gate = true,
                                         .convention = heed::gate::outside_scale};
  const auto layer = layer_program::make_layer<double>(o);
  check(*layer, with(reference::path_attention<double>, o), 18, 3);
}

TEST_CASE("layer: fox") {
  for (const bool full : {false, true}) {
    layers::forgetting_attention_options o{.model_dim = 12, .heads = 4, .kv_heads = full ? 2 : 4};
    o.qkv_bias = o.qk_norm = o.output_gate = full;
    const auto layer = layer_program::make_layer<double>(o);
    check(*layer, with(reference::forgetting_attention<double>, o), 12, full ? 4 : 5);
  }
}

TEST_CASE("layer: foxpro") {
  using layers::forget_gate;
  layers::forgetting_attention_layer_options pro{.model_dim = 12, .heads = 2};
  pro.qk_norm = pro.key_shift = pro.value_shift = pro.output_gate = pro.output_norm = true;
  layers::forgetting_attention_layer_options turned = pro;
  turned.rope = turned.qk_norm_shared = true;
  turned.output_norm = false;
  turned.activation = layers::gate_activation::silu;
  turned.gates = forget_gate::bias_only;
  layers::forgetting_attention_layer_options fixed{.model_dim = 12, .heads = 3};
  fixed.gates = forget_gate::fixed;
  fixed.shortest_decay = 2;
  fixed.longest_decay = 64;
  fixed.output_norm = true;
  layers::forgetting_attention_layer_options open = fixed;
  open.gates = forget_gate::none;
  std::uint64_t seed = 10;
  for (const auto& o : {pro, turned, fixed, open}) {
    const auto layer = layer_program::make_layer<double>(o);
    check(*layer, with(reference::forgetting_attention_layer<double>, o), 12, ++seed);
  }
}

TEST_CASE("layer: fixed gates forget by a factor e in their time") {
  layers::forgetting_attention_layer_options o{.model_dim = 12, .heads = 3};
  o.gates = layers::forget_gate::fixed;
  o.shortest_decay = 2;
  o.longest_decay = 50;
  const auto layer = layer_program::make_layer<double>(o);
  for (const auto& p : layer->parameters()) {
    if (p.name != "forget.bias") continue;
    CHECK_FALSE(p.learned);
    for (const std::size_t h : {0, 1, 2}) {
      const double time = h == 0 ? 2 : h == 1 ? 10 : 50;
      CHECK(std::abs(-1 / std::log(reference::logistic(p.value[h])) - time) <= 1e-9 * time);
    }
  }
}

TEST_CASE("layer: cope") {
  for (const int kind : {0, 1, 2}) {
    layers::cope_attention_options o{.model_dim = 12, .heads = 3, .head_dim = 4};
    o.cope.positions = kind == 0 ? 41 : 5;
    if (kind == 1) o.cope.gates = heed::cope_gates::separate_keys;
    if (kind == 2) o.cope.scale = heed::cope_scale::undivided;
    o.cope.distances = kind == 0 ? 0 : 4;
    o.cope.extend_distances = kind == 2;
    const auto layer = layer_program::make_layer<double>(o);
    check(*layer, with(reference::cope_attention<double>, o), 12,
          static_cast<std::uint64_t>(20 + kind), 1e-5);
  }
}

TEST_CASE("layer: cope behind rope") {
  layers::cope_attention_options o{.model_dim = 12, .heads = 2, .head_dim = 6};
  o.cope.positions = 6;
  o.rope = {.theta = 100, .pairs = heed::rope_pairs::half};
  const auto layer = layer_program::make_layer<double>(o);
  check(*layer, with(reference::cope_attention<double>, o), 12, 30, 1e-5);
}

TEST_CASE("layer: mta") {
  using layers::head_gates;
  layers::mta_attention_options all{.model_dim = 10, .heads = 4, .kv_heads = 2, .head_dim = 6};
  all.mta = {.logits = {2, 3},
             .probabilities = {3, 5},
             .mix_logits = true,
             .mixed_group = 2,
             .norm = true,
             .norm_factor = 1 - heed::lambda_init(3),
             .gates = head_gates::per_component};
  layers::mta_attention_options some{.model_dim = 10, .heads = 2, .head_dim = 5, .rope_theta = 0};
  some.mta = {.logits = {},
              .probabilities = {2, 4},
              .side = heed::conv_keys::left,
              .mix_probabilities = true,
              .gates = head_gates::per_head};
  std::uint64_t seed = 40;
  for (const auto& o : {all, some}) {
    const auto layer = layer_program::make_layer<double>(o);
    check(*layer, with(reference::mta_attention<double>, o), 10, ++seed);
  }
}

}  // namespace heed_test
