// What holds for every layer: strides, empty calls, executors, sequences of a cache, refusals.
#include <random>

#include "allocations.hpp"
#include "catch.hpp"
#include "heed/layers/forgetting_attention_layer.hpp"
#include "heed/layers/path_attention.hpp"
#include "layer/kinds.hpp"
#include "random_problem.hpp"

namespace heed_test {
namespace {

namespace layers = heed::layers;
using Catch::Matchers::ContainsSubstring;
using heed::index;
using layer_program::any_layer;

template <class T>
layer_program::layer_ptr<T> pro() {
  layers::forgetting_attention_layer_options o{.model_dim = 12, .heads = 2};
  o.qk_norm = o.key_shift = o.value_shift = o.output_gate = o.output_norm = o.rope = true;
  auto layer = layer_program::make_layer<T>(o);
  layer->initialize(3);
  return layer;
}
template <class T>
layer_program::layer_ptr<T> path() {
  auto layer = layer_program::make_layer<T>(layers::path_attention_options{
      .model_dim = 12, .heads = 2, .conv_bias = true, .forget_gate = true});
  layer->initialize(4);
  return layer;
}

std::vector<double> random_values(index count, std::uint64_t seed) {
  random_source random(seed);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& x : values) x = random.uniform(-1, 1);
  return values;
}
heed::tensor_view<const double, 3> read(const std::vector<double>& x, index B, index T) {
  return {x.data(), {B, T, 12}};
}
heed::tensor_view<double, 3> write(std::vector<double>& x, index B, index T) {
  return {x.data(), {B, T, 12}};
}

}  // namespace

TEST_CASE("MultiHeadAttention: any strides") {
  const auto layer = pro<double>();
  const auto x = random_values(2 * 5 * 12, 1), dy = random_values(2 * 5 * 12, 2);
  std::vector<double> y(x.size()), dx(x.size());
  layer->forward(read(x, 2, 5), write(y, 2, 5));
  layer->backward(read(x, 2, 5), read(dy, 2, 5), write(dx, 2, 5));

  // Tokens outermost and every second component, as another memory layout might have them.
  std::vector<double> wide(2 * x.size()), wide_dy(wide.size()), out(wide.size(), 7), wide_dx = out;
  const heed::shape<3> extents{2, 5, 12}, strides{24, 48, 2};
  for_each_index<3>(extents, [&](index b, index t, index c) {
    const auto at = static_cast<std::size_t>(24 * b + 48 * t + 2 * c);
    wide[at] = read(x, 2, 5)(b, t, c);
    wide_dy[at] = read(dy, 2, 5)(b, t, c);
  });
  const heed::tensor_view<const double, 3> in(wide.data(), extents, strides);
  layer->forward(in, {out.data(), extents, strides});
  layer->backward(in, {wide_dy.data(), extents, strides}, {wide_dx.data(), extents, strides});
  for_each_index<3>(extents, [&](index b, index t, index c) {
    const auto at = static_cast<std::size_t>(24 * b + 48 * t + 2 * c);
    CHECK(out[at] == write(y, 2, 5)(b, t, c));
    CHECK(wide_dx[at] == write(dx, 2, 5)(b, t, c));
    CHECK(out[at + 1] == 7);
    CHECK(wide_dx[at + 1] == 7);
  });
}

TEST_CASE("MultiHeadAttention: the same bits for any number of threads") {
  const auto layer = path<double>();
  const index T = 600;
  const auto x = random_values(T * 12, 3), dy = random_values(T * 12, 4);
  std::vector<double> y(x.size()), dx(x.size()), y2 = y, dx2 = y;
  layer->zero_gradients();
  layer->forward(read(x, 1, T), write(y, 1, T));
  layer->backward(read(x, 1, T), read(dy, 1, T), write(dx, 1, T));
  std::vector<std::vector<double>> gradients;
  for (const auto& p : layer->parameters()) {
    gradients.emplace_back(p.gradient.begin(), p.gradient.end());
  }
  heed::thread_pool pool(3);
  layer->executor = pool;
  layer->zero_gradients();
  layer->forward(read(x, 1, T), write(y2, 1, T));
  layer->backward(read(x, 1, T), read(dy, 1, T), write(dx2, 1, T));
  CHECK(y == y2);
  CHECK(dx == dx2);
  std::size_t n = 0;
  for (const auto& p : layer->parameters()) {
    CHECK(std::ranges::equal(p.gradient, gradients[n++]));
  }
}

TEST_CASE("MultiHeadAttention: sequences of a cache go on by themselves") {
  for (const auto& layer : {pro<double>(), path<double>()}) {
    const index T = 20;
    const auto x = random_values(3 * T * 12, 5);
    std::vector<double> expected(x.size()), y(x.size(), 7);
    layer->infer(read(x, 3, T), write(expected, 3, T));
    std::vector<index> length(3);
    random_source random(6);
    layer->start(3);
    // Some sequences at a time, in any order, each with its own past.
    for (int round = 0; round < 40; ++round) {
      std::vector<index> which;
      for (const index s : {2, 0, 1}) {
        if (length[static_cast<std::size_t>(s)] < T && random.chance(0.5)) which.push_back(s);
      }
      index tokens = random.integer(1, 4);
      for (const index s : which) {
        tokens = std::min(tokens, T - length[static_cast<std::size_t>(s)]);
      }
      if (which.empty()) continue;
      const auto n = static_cast<index>(which.size());
      std::vector<double> in, out(static_cast<std::size_t>(n * tokens * 12));
      for (const index s : which) {
        const auto from =
            static_cast<std::ptrdiff_t>((s * T + length[static_cast<std::size_t>(s)]) * 12);
        in.insert(in.end(), x.begin() + from, x.begin() + from + tokens * 12);
      }
      layer->decode(read(in, n, tokens), write(out, n, tokens), which);
      for (index m = 0; m < n; ++m) {
        index& at = length[static_cast<std::size_t>(which[static_cast<std::size_t>(m)])];
        std::copy_n(out.begin() + m * tokens * 12, tokens * 12,
                    y.begin() + (which[static_cast<std::size_t>(m)] * T + at) * 12);
        at += tokens;
        CHECK(layer->length(which[static_cast<std::size_t>(m)]) == at);
      }
    }
    for (index s = 0; s < 3; ++s) {
      for (index n = s * T * 12; n < (s * T + length[static_cast<std::size_t>(s)]) * 12; ++n) {
        const auto at = static_cast<std::size_t>(n);
        CHECK(std::abs(y[at] - expected[at]) <= 1e-12);
      }
    }
    CHECK(length[0] + length[1] + length[2] > T);
  }
}

TEST_CASE("MultiHeadAttention: fork and reset") {
  for (const auto& layer : {pro<double>(), path<double>()}) {
    const auto x = random_values(10 * 12, 7), other = random_values(10 * 12, 8);
    std::vector<double> expected(x.size()), y(x.size());
    // The first 6 tokens of x, then 4 of the other.
    std::vector<double> joined = x;
    std::copy(other.begin() + 6 * 12, other.end(), joined.begin() + 6 * 12);
    layer->infer(read(joined, 1, 10), write(expected, 1, 10));
    layer->start(2);
    const index zero[] = {0}, one[] = {1};
    layer->decode(read(other, 1, 10), write(y, 1, 10), one);
    layer->decode(read(x, 1, 10).slice(1, 0, 6), write(y, 1, 10).slice(1, 0, 6), zero);
    layer->fork(0, 1);
    CHECK(layer->length(1) == 6);
    layer->decode(read(x, 1, 10).slice(1, 6, 10), write(y, 1, 10).slice(1, 6, 10), zero);
    layer->decode(read(joined, 1, 10).slice(1, 6, 10), write(y, 1, 10).slice(1, 6, 10), one);
    for (std::size_t n = 0; n < y.size(); ++n) CHECK(std::abs(y[n] - expected[n]) <= 1e-12);
    layer->reset(1);
    CHECK(layer->length(1) == 0);
    layer->decode(read(joined, 1, 10), write(y, 1, 10), one);
    for (std::size_t n = 0; n < y.size(); ++n) CHECK(std::abs(y[n] - expected[n]) <= 1e-12);
  }
}

TEST_CASE("MultiHeadAttention: a step allocates nothing once there is room") {
  for (const auto& layer : {pro<double>(), path<double>()}) {
    const index T = 200;
    const auto x = random_values(T * 12, 10);
    std::vector<double> y(x.size());
    layer->start(1, T);
    const auto decode = [&](index from, index to) {
      layer->decode(read(x, 1, T).slice(1, from, to), write(y, 1, T).slice(1, from, to));
    };
    // The first steps see blocks of tokens filled and sealed.
    decode(0, 70);
    for (index t = 70; t < 140; ++t) decode(t, t + 1);
    const long before = allocations;
    for (index t = 140; t < T; ++t) decode(t, t + 1);
    CHECK(allocations == before);
  }
}

TEST_CASE("MultiHeadAttention: no tokens, no sequences") {
  const auto layer = path<float>();
  std::vector<float> none(1);
  layer->zero_gradients();
  for (const heed::shape<3>& e : {heed::shape<3>{0, 3, 12}, heed::shape<3>{2, 0, 12}}) {
    layer->forward({none.data(), e}, {none.data(), e});
    layer->backward({none.data(), e}, {none.data(), e}, {none.data(), e});
    layer->start(e[0]);
    layer->decode({none.data(), e}, {none.data(), e});
  }
  for (const auto& p : layer->parameters()) {
    for (const float g : p.gradient) CHECK(g == 0);
  }
}

TEST_CASE("MultiHeadAttention: what does not fit is refused before anything is written") {
  const auto layer = pro<double>();
  const auto x = random_values(2 * 5 * 12, 9);
  std::vector<double> y(x.size(), 7), dx = y;
  const auto in = read(x, 2, 5);
  const auto refused = [&](const auto& call, const char* part) {
    CHECK_THROWS_AS(call(), heed::shape_error);
    CHECK_THROWS_WITH(call(), ContainsSubstring(part));
    for (const double value : y) CHECK(value == 7);
    for (const double value : dx) CHECK(value == 7);
  };
  using view = heed::tensor_view<double, 3>;
  using input = heed::tensor_view<const double, 3>;
  refused(
      [&] {
        layer->infer({x.data(), {2, 6, 10}}, {y.data(), {2, 6, 10}});
      },
      "x: axis 2 (model_dim) is 10, expected 12");
  refused([&] { layer->infer(in, {y.data(), {2, 4, 12}}); }, "y: axis 1 (tokens) is 4, expected 5");
  refused([&] { layer->infer(write(y, 2, 5), write(y, 2, 5)); }, "y shares elements with x");
  refused([&] { layer->infer(in, view(y.data(), {2, 5, 12}, {0, 12, 1})); }, "stride 0");
  refused([&] { layer->backward(in, in, write(dx, 2, 5)); }, "the tape is not what forward left");
  refused(
      [&] {
        layer->backward(in, input(x.data(), {2, 5, 11}), write(dx, 2, 5));
      },
      "dy: axis 2 (model_dim) is 11");
  layer->start(2);
  const index twice[] = {1, 1}, beyond[] = {0, 2}, single[] = {0};
  refused([&] { layer->decode(in, write(y, 2, 5), twice); }, "sequence 1 is named twice");
  refused([&] { layer->decode(in, write(y, 2, 5), beyond); }, "no sequence 2 of 2");
  refused([&] { layer->decode(in, write(y, 2, 5), single); }, "x: axis 0 (sequences) is 2");
}

TEST_CASE("MultiHeadAttention: sizes that make no layer") {
  const auto make = [](index model_dim, index heads, index kv_heads) {
    layers::path_attention<float>({.model_dim = model_dim, .heads = heads, .kv_heads = kv_heads});
  };
  CHECK_THROWS_WITH(make(10, 3, 0), ContainsSubstring("expected a multiple of heads = 3"));
  CHECK_THROWS_WITH(make(12, 3, 2), ContainsSubstring("expected a divisor of heads = 3"));
  CHECK_THROWS_WITH(make(0, 3, 0), ContainsSubstring("model_dim is 0"));
  CHECK_THROWS_WITH(make(12, 0, 0), ContainsSubstring("heads is 0"));
  layers::forgetting_attention_layer_options o{.model_dim = 12, .heads = 2};
  o.output_norm = o.output_gate = true;
  o.activation = layers::gate_activation::silu;
  CHECK_THROWS_WITH(layers::forgetting_attention_layer<float>(o), ContainsSubstring("sigmoid"));
}

TEST_CASE("MultiHeadAttention: parameters by name and in a flat list") {
  auto layer = layers::path_attention<double>({.model_dim = 12, .heads = 2, .forget_gate = true});
  layer.initialize(1);
  std::vector<std::string> names;
  for (const auto& p : layer.parameters()) names.push_back(p.name);
  CHECK(names == std::vector<std::string>{
                     "query.weight", "key.weight", "value.weight", "output.weight",
                     "direction_down.weight", "direction.weight", "direction_conv.weight",
                     "step.weight", "step.bias", "forget.weight", "forget.bias"});
  const auto p = layer.parameter("direction_down.weight");
  CHECK(std::ranges::equal(p.shape, std::vector<index>{32, 12}));
  CHECK(p.value.size() == 32 * 12);
  CHECK(p.gradient.empty());
  layer.zero_gradients();
  CHECK(layer.parameter("step.bias").gradient.size() == 2);
  double squares = 0;
  for (const double w : p.value) squares += w * w;
  CHECK(std::abs(squares / 32 - 1) < 0.3);
  CHECK_THROWS_WITH(layer.parameter("q"), ContainsSubstring("no parameter q"));
}

}  // namespace heed_test
