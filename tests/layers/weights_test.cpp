// Weights in safetensors files, under heed's names and those of published code.
#include "heed/layers/weights.hpp"

#include "catch.hpp"
#include "heed/layers/forgetting_attention_layer.hpp"
#include "scratch_folder.hpp"

namespace heed_test {
namespace {

namespace layers = heed::layers;
using Catch::Matchers::ContainsSubstring;

auto make(bool shift) {
  layers::forgetting_attention_layer_options o{.model_dim = 8, .heads = 2};
  o.key_shift = shift;
  o.qk_norm = true;
  auto layer = layers::forgetting_attention_layer<float>(o);
  layer.initialize(shift ? 1 : 2);
  return layer;
}

}  // namespace

TEST_CASE("weights: written and read again, under both names") {
  const scratch_folder scratch("weights");
  const auto path = scratch.path / "layer.safetensors";
  for (const bool official : {false, true}) {
    const auto names =
        official ? std::span<const layers::parameter_name>(layers::forgetting_attention_layer_names)
                 : std::span<const layers::parameter_name>();
    auto layer = make(true), other = make(true);
    for (const auto& p : other.parameters()) std::fill(p.value.begin(), p.value.end(), 7.0F);
    layers::save(layer, path, names, "attn.");
    const auto file = heed::io::safetensors::open(path);
    CHECK(file.contains(official ? "attn.k_proj.linear.weight" : "attn.key.weight"));
    CHECK(file.contains(official ? "attn.fgate_proj.bias" : "attn.forget.bias"));
    layers::load(other, path, names, "attn.");
    const auto expected = layer.parameters();
    for (std::size_t n = 0; n < expected.size(); ++n) {
      CHECK(std::ranges::equal(other.parameters()[n].value, expected[n].value));
    }
  }
}

TEST_CASE("weights: a row of the table holds where the layer has what it names") {
  const auto names_of = [](bool shift) {
    return layers::official_names(make(shift).parameters(),
                                  layers::forgetting_attention_layer_names);
  };
  CHECK(std::ranges::count(names_of(true), "k_proj.linear.weight") == 1);
  CHECK(std::ranges::count(names_of(false), "k_proj.weight") == 1);
}

TEST_CASE("weights: what is missing, misshapen or surplus is named, and nothing has changed") {
  const scratch_folder scratch("weights");
  const auto path = scratch.path / "layer.safetensors";
  auto layer = make(false);
  const auto before = std::vector<float>(layer.parameter("query.weight").value.begin(),
                                         layer.parameter("query.weight").value.end());
  const auto refused = [&](const std::string& part, std::string_view prefix = {}) {
    CHECK_THROWS_AS(layers::load(layer, path, {}, prefix), heed::io::safetensors_error);
    CHECK_THROWS_WITH(layers::load(layer, path, {}, prefix), ContainsSubstring(part));
    CHECK(std::ranges::equal(layer.parameter("query.weight").value, before));
  };
  auto other = make(true);
  layers::save(other, path);
  refused("tensor 'key_shift.weight' belongs to no parameter of the layer");
  layers::save(layer, path);
  refused("tensor 'attn.query.weight' is missing", "attn.");
  const auto list = layer.parameters();
  std::vector<heed::io::safetensors_tensor> tensors;
  const std::vector<float> zeros(64);
  for (const auto& p : list) {
    tensors.push_back({p.name,
                       {p.shape.begin(), p.shape.end()},
                       std::span<const float>(zeros).first(p.value.size())});
  }
  tensors.back().extents.push_back(1);
  heed::io::write_safetensors(path, tensors);
  refused("tensor 'forget.bias' has shape [2, 1], expected [2]");
  tensors.pop_back();
  heed::io::write_safetensors(path, tensors);
  refused("tensor 'forget.bias' is missing");
}

TEST_CASE("weights: gradients of what is learned") {
  const scratch_folder scratch("weights");
  const auto path = scratch.path / "gradients.safetensors";
  layers::forgetting_attention_layer_options o{.model_dim = 8, .heads = 2};
  o.gates = layers::forget_gate::fixed;
  auto layer = layers::forgetting_attention_layer<float>(o);
  layer.zero_gradients();
  layers::save_gradients(layer.parameters(), path, layers::forgetting_attention_layer_names);
  const auto file = heed::io::safetensors::open(path);
  CHECK(file.contains("q_proj.weight"));
  CHECK_FALSE(file.contains("fgate_bias"));
  CHECK(file.tensors().size() + 1 == layer.parameters().size());
}

}  // namespace heed_test
