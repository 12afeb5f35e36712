// Layers that nobody published: MTA with forget gates, MTA over PaTH.
#include <tuple>

#include "catch.hpp"
#include "heed/reference/layers.hpp"
#include "layer/held_layer.hpp"
#include "layers/check_layer.hpp"

namespace heed_test {
namespace {

namespace layers = heed::layers;
namespace reference = heed::reference;
using tensors = reference::layer_tensors<double>;

layers::mta_attention_options options() {
  layers::mta_attention_options o{.model_dim = 10, .heads = 2, .head_dim = 6};
  o.mta = {.logits = {2, 3},
           .probabilities = {2, 3},
           .mixed_group = 2,
           .norm = true,
           .gates = layers::head_gates::per_head};
  return o;
}

void check(any_layer& layer, const layer_reference& expected, std::uint64_t seed) {
  layer_check small(layer, expected, 2, 7, 10, seed);
  small.forward();
  small.gradients(1e-8);
  small.decode({1});
  small.decode({3, 1});
  layer_check longer(layer, expected, 1, 40, 10, seed);
  longer.forward();
  longer.decode({19, 1, 1, 3});
}

// MTA's names with those of other parts left as they are here.
std::span<const layers::parameter_name> names() {
  return layers::mta_attention_names;
}

}  // namespace

TEST_CASE("layer: mta with forget gates behind its convolution") {
  const layers::mta_attention_options o = options();
  const layers::layer_sizes s = layers::layer_sizes{o.model_dim, o.heads, 0, o.head_dim}.checked();
  using layer_type =
      heed::MultiHeadAttention<double, layers::rope_part, layers::mta_part, layers::fox_part>;
  const auto layer = layer_program::hold(
      layer_type(layers::layer_frame<double>(s, {}),
                 {{.theta = o.rope_theta, .pairs = heed::rope_pairs::interleaved}},
                 layers::mta_part<double>(s, o.mta),
                 layers::fox_part<double>(s, layers::forget_gate::full)),
      names());
  const auto expected = [&](const tensors& p, const tokens_view& x, const output_view& y) {
    reference::each_sequence(x, y, [&](const reference::token_list<double>& in) {
      const reference::flat_tokens<double> gates(
          reference::each(reference::linear(in, p, "forget"),
                          [](double z) { return std::log(reference::logistic(z)); }));
      return reference::mta_rows(o, p, in, heed::fox<double>{gates.per_head()});
    });
  };
  check(*layer, expected, 1);
}

TEST_CASE("layer: mta over path") {
  layers::mta_attention_options o = options();
  o.rope_theta = 0;
  const layers::layer_sizes s = layers::layer_sizes{o.model_dim, o.heads, 0, o.head_dim}.checked();
  using layer_type = heed::MultiHeadAttention<double, layers::path_part, layers::mta_part>;
  const auto layer = layer_program::hold(
      layer_type(layers::layer_frame<double>(s, {}),
                 layers::path_part<double>(s, {.rank = 3, .conv_span = 3, .conv_bias = true}),
                 layers::mta_part<double>(s, o.mta)),
      names());
  const auto expected = [&](const tensors& p, const tokens_view& x, const output_view& y) {
    reference::each_sequence(x, y, [&](const reference::token_list<double>& in) {
      const auto low = reference::linear(in, p, "direction_down");
      const auto mixed =
          reference::short_conv(reference::linear(low, p, "direction"),
                                p.at("direction_conv.weight"), &p.at("direction_conv.bias"));
      const reference::flat_tokens<double> w(reference::head_directions(mixed, 2, 1e-6));
      const reference::flat_tokens<double> beta(reference::each(
          reference::linear(in, p, "step"), [](double z) { return 2 * reference::logistic(z); }));
      return reference::mta_rows(o, p, in, heed::path<double>{w.heads(o.heads), beta.per_head()});
    });
  };
  check(*layer, expected, 2);
}

}  // namespace heed_test
