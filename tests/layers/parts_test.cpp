// The parts of a layer, each against the loops of the reference: forward, gradients against
// differences, what the parts with a memory do with chunks.
#include <functional>

#include "catch.hpp"
#include "heed/layers/gate.hpp"
#include "heed/layers/head_projection.hpp"
#include "heed/layers/rows.hpp"
#include "heed/layers/short_conv.hpp"
#include "heed/reference/layer_parts.hpp"
#include "random_problem.hpp"

namespace heed_test {
namespace {

using namespace heed::layers;
namespace reference = heed::reference;
using heed::index;
using rows = reference::token_list<double>;
using matrix = heed::tensor_view<const double, 2>;

const layer_context<double> context{};

buffer<double> random_rows(random_source& random, index count, index cols) {
  buffer<double> x;
  x.resize(count, cols);
  for (index n = 0; n < x.size(); ++n) x.data()[n] = random.uniform(-1, 1);
  return x;
}
void randomise(random_source& random, parameter<double>& p) {
  for (double& value : p.value) value = random.uniform(-1, 1);
}
reference::layer_tensor<double> tensor(const parameter<double>& p) {
  return {p.shape, p.value};
}
// Sequence b of the rows.
rows sequence(const buffer<double>& x, token_rows shape, index b) {
  rows list;
  for (index t = 0; t < shape.tokens; ++t) {
    const double* row = x.row(b * shape.tokens + t);
    list.emplace_back(row, row + x.cols());
  }
  return list;
}
double distance(const buffer<double>& found, const rows& expected, index first = 0) {
  double worst = 0;
  for (std::size_t t = 0; t < expected.size(); ++t) {
    for (std::size_t c = 0; c < expected[t].size(); ++c) {
      const double error = std::abs(found.row(first + static_cast<index>(t))[c] - expected[t][c]);
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

// The gradient of sum(run() * dy) by what lies at `values`, against differences.
void check_gradient(double* values, const double* gradient, index size,
                    const std::function<const buffer<double>&()>& run, const buffer<double>& dy) {
  const auto loss = [&] {
    const buffer<double>& y = run();
    double sum = 0;
    for (index n = 0; n < y.size(); ++n) sum += y.data()[n] * dy.data()[n];
    return sum;
  };
  double worst = 0;
  for (index n = 0; n < size; ++n) {
    const double old = values[n], step = 1e-4;
    const auto at = [&](double x) {
      values[n] = x;
      return loss();
    };
    const double near = at(old + step) - at(old - step);
    const double far = at(old + 2 * step) - at(old - 2 * step);
    values[n] = old;
    const double error = std::abs((8 * near - far) / (12 * step) - gradient[n]);
    if (!(error <= worst)) worst = error;
  }
  CHECK(worst <= 1e-8);
}
void check_gradient(parameter<double>& p, const std::function<const buffer<double>&()>& run,
                    const buffer<double>& dy) {
  REQUIRE(p.gradient.size() == p.value.size());
  check_gradient(p.value.data(), p.gradient.data(), p.size(), run, dy);
}

}  // namespace

TEST_CASE("projection: product, bias, low rank, gradients") {
  random_source random(1);
  const token_rows shape{2, 3};
  for (const index rank : {index{0}, index{2}}) {
    buffer<double> x = random_rows(random, 6, 5), y, dx, dy = random_rows(random, 6, 4);
    low_rank_projection<double> map(5, 4, rank);
    map.each_parameter("w",
                       [&](const std::string&, parameter<double>& p) { randomise(random, p); });
    CHECK(map.down.exists() == (rank > 0));
    low_rank_projection<double>::tape kept;
    const auto run = [&]() -> const buffer<double>& {
      y.resize(6, 4);
      map.forward(std::as_const(x).matrix(), y.matrix(), kept, context);
      return y;
    };
    run();
    for (index b = 0; b < 2; ++b) {
      rows expected = sequence(x, shape, b);
      if (rank > 0) expected = reference::linear(expected, tensor(map.down.weight));
      CHECK(distance(y, reference::linear(expected, tensor(map.up.weight)), b * 3) <= 1e-14);
    }
    dx.resize_zero(6, 5);
    map.backward(std::as_const(x).matrix(), std::as_const(dy).matrix(), dx.matrix(), kept, context);
    map.each_parameter(
        "w", [&](const std::string&, parameter<double>& p) { check_gradient(p, run, dy); });
    check_gradient(x.data(), dx.data(), x.size(), run, dy);
  }
  projection<double> biased(5, 4, true);
  randomise(random, biased.weight);
  randomise(random, biased.bias);
  buffer<double> x = random_rows(random, 6, 5), y, dy = random_rows(random, 6, 4);
  const auto run = [&]() -> const buffer<double>& {
    y.resize(6, 4);
    biased.forward(std::as_const(x).matrix(), y.matrix(), context);
    return y;
  };
  const auto bias = tensor(biased.bias);
  CHECK(distance(run(), reference::linear(sequence(x, {1, 6}, 0), tensor(biased.weight), &bias)) <=
        1e-14);
  biased.backward(std::as_const(x).matrix(), std::as_const(dy).matrix(), {}, context);
  check_gradient(biased.weight, run, dy);
  check_gradient(biased.bias, run, dy);
}

TEST_CASE("projection: blocks of rows go to the executor, products to the caller's") {
  random_source random(2);
  const index N = 700;
  buffer<double> x = random_rows(random, N, 9), one, two, three;
  projection<double> map(9, 6, true);
  randomise(random, map.weight);
  one.resize(N, 6);
  two.resize(N, 6);
  three.resize(N, 6);
  map.forward(std::as_const(x).matrix(), one.matrix(), context);
  heed::thread_pool pool(3);
  map.forward(std::as_const(x).matrix(), two.matrix(), {pool, {}});
  int calls = 0;
  const auto product = [&](const matrix& a, const matrix& b,
                           const heed::tensor_view<double, 2>& c) {
    ++calls;
    for (index i = 0; i < c.extent(0); ++i) {
      for (index j = 0; j < c.extent(1); ++j) {
        for (index k = 0; k < a.extent(1); ++k) c(i, j) += a(i, k) * b(k, j);
      }
    }
  };
  map.forward(std::as_const(x).matrix(), three.matrix(), {{}, product});
  CHECK(calls == 3);
  double worst = 0;
  for (index n = 0; n < one.size(); ++n) {
    CHECK(one.data()[n] == two.data()[n]);
    worst = std::max(worst, std::abs(one.data()[n] - three.data()[n]));
  }
  CHECK(worst <= 1e-14);
}

TEST_CASE("rms_norm: one weight for all heads or one for each") {
  random_source random(3);
  for (const norm_weight of : {norm_weight::shared, norm_weight::per_head}) {
    rms_norm<double> norm(3, 4, of, 1e-3);
    CHECK(norm.weight.size() == (of == norm_weight::shared ? 4 : 12));
    CHECK(norm.weight.value[1] == 1);
    randomise(random, norm.weight);
    buffer<double> x = random_rows(random, 5, 12), y, dy = random_rows(random, 5, 12), dx = dy;
    const auto run = [&]() -> const buffer<double>& {
      norm.forward(x, y, context);
      return y;
    };
    CHECK(distance(run(), reference::head_rms_norm(sequence(x, {1, 5}, 0), 3, tensor(norm.weight),
                                                   1e-3)) <= 1e-14);
    norm.backward(x, dx);
    check_gradient(norm.weight, run, dy);
    check_gradient(x.data(), dx.data(), x.size(), run, dy);
    const rows expected = sequence(run(), {1, 5}, 0);
    norm.forward(x, x, context);
    CHECK(distance(x, expected) == 0);
  }
  CHECK_THROWS_AS(rms_norm<double>(3, 4, norm_weight::shared, 0), heed::shape_error);
}

TEST_CASE("token_shift: mixes with the token before, also across chunks") {
  random_source random(4);
  const token_rows shape{2, 5};
  token_shift<double> shift(7, 2);
  randomise(random, shift.part.weight);
  buffer<double> x = random_rows(random, 10, 7), r = random_rows(random, 10, 6), y;
  buffer<double> dy = random_rows(random, 10, 6), dr = dy, dx;
  token_shift<double>::tape kept;
  const auto run = [&]() -> const buffer<double>& {
    shift.forward(std::as_const(x).matrix(), r, y, shape, kept, context, {});
    return y;
  };
  run();
  const auto weight = tensor(shift.part.weight);
  for (index b = 0; b < 2; ++b) {
    const rows expected =
        reference::shift(sequence(r, shape, b), reference::linear(sequence(x, shape, b), weight));
    CHECK(distance(y, expected, b * 5) <= 1e-14);
  }
  dx.resize_zero(10, 7);
  shift.backward(std::as_const(x).matrix(), r, dr, shape, dx.matrix(), kept, context);
  check_gradient(shift.part.weight, run, dy);
  check_gradient(r.data(), dr.data(), r.size(), run, dy);
  check_gradient(x.data(), dx.data(), x.size(), run, dy);

  // The second sequence in chunks, as number 2 of three that a history holds.
  const rows expected = sequence(run(), shape, 1);
  row_history<double> history(3, 1, 6);
  const index which[] = {2};
  index done = 0;
  for (const index tokens : {1, 3, 1}) {
    const index from = 5 + done;
    buffer<double> part, mixed;
    part.resize(tokens, 6);
    std::copy_n(r.row(from), tokens * 6, part.data());
    shift.forward(std::as_const(x).matrix().slice(0, from, from + tokens), part, mixed, {1, tokens},
                  kept, context, {&history, which});
    CHECK(distance(mixed, rows(expected.begin() + done, expected.begin() + done + tokens)) <=
          1e-15);
    done += tokens;
  }
}

TEST_CASE("short_convolution: over the last tokens, also across chunks") {
  random_source random(5);
  const token_rows shape{2, 5};
  for (const index span : {1, 3, 8}) {
    CAPTURE(span);
    short_convolution<double> conv(6, span, span == 3);
    randomise(random, conv.weight);
    randomise(random, conv.bias);
    buffer<double> r = random_rows(random, 10, 6), y, dy = random_rows(random, 10, 6), dr = dy;
    short_convolution<double>::tape kept;
    const auto run = [&]() -> const buffer<double>& {
      conv.forward(r, y, shape, kept, context, {});
      return y;
    };
    run();
    const auto weight = tensor(conv.weight), bias = tensor(conv.bias);
    for (index b = 0; b < 2; ++b) {
      const rows expected = reference::short_conv(sequence(r, shape, b), weight,
                                                  conv.bias.exists() ? &bias : nullptr);
      CHECK(distance(y, expected, b * 5) <= 1e-14);
    }
    conv.backward(r, dr, shape, kept);
    check_gradient(conv.weight, run, dy);
    if (conv.bias.exists()) check_gradient(conv.bias, run, dy);
    check_gradient(r.data(), dr.data(), r.size(), run, dy);

    const rows expected = sequence(run(), shape, 1);
    row_history<double> history(2, span - 1, 6);
    const index which[] = {0};
    index done = 0;
    for (const index tokens : {1, 2, 2}) {
      buffer<double> part, out;
      part.resize(tokens, 6);
      std::copy_n(r.row(5 + done), tokens * 6, part.data());
      conv.forward(part, out, {1, tokens}, kept, context, {&history, which});
      CHECK(distance(out, rows(expected.begin() + done, expected.begin() + done + tokens)) <=
            1e-15);
      done += tokens;
    }
  }
  CHECK_THROWS_AS(short_convolution<double>(6, 0, false), heed::shape_error);
}

TEST_CASE("output_gate: sigmoid and SiLU") {
  random_source random(6);
  for (const gate_activation activation : {gate_activation::sigmoid, gate_activation::silu}) {
    output_gate<double> gate(5, 6, activation, true);
    randomise(random, gate.logits.weight);
    randomise(random, gate.logits.bias);
    buffer<double> x = random_rows(random, 4, 5), o = random_rows(random, 4, 6), y, dx;
    buffer<double> dy = random_rows(random, 4, 6), d_o = dy;
    output_gate<double>::tape kept;
    const auto run = [&]() -> const buffer<double>& {
      gate.forward(std::as_const(x).matrix(), o, y, kept, context);
      return y;
    };
    const auto bias = tensor(gate.logits.bias);
    const bool silu = activation == gate_activation::silu;
    const rows expected = reference::each(
        sequence(o, {1, 4}, 0),
        reference::linear(sequence(x, {1, 4}, 0), tensor(gate.logits.weight), &bias),
        [&](double a, double z) { return a * reference::logistic(z) * (silu ? z : 1); });
    CHECK(distance(run(), expected) <= 1e-15);
    dx.resize_zero(4, 5);
    gate.backward(std::as_const(x).matrix(), o, d_o, dx.matrix(), kept, context);
    check_gradient(gate.logits.weight, run, dy);
    check_gradient(gate.logits.bias, run, dy);
    check_gradient(o.data(), d_o.data(), o.size(), run, dy);
    check_gradient(x.data(), dx.data(), x.size(), run, dy);
    gate.forward(std::as_const(x).matrix(), o, o, kept, context);
    CHECK(distance(o, expected) <= 1e-15);
  }
}

TEST_CASE("rows: in place where tokens are rows at one distance, else by a copy") {
  std::vector<double> data(200);
  for (std::size_t n = 0; n < data.size(); ++n) data[n] = static_cast<double>(n);
  using view = heed::tensor_view<const double, 3>;
  buffer<double> copy;
  for (const view& x :
       {view(data.data(), {2, 3, 4}), view(data.data(), {2, 3, 4}, {30, 10, 1}),
        view(data.data(), {2, 3, 4}, {31, 10, 1}), view(data.data(), {2, 3, 4}, {4, 8, 1}),
        view(data.data(), {2, 3, 4}, {24, 8, 2}), view(data.data(), {2, 1, 4}, {40, 1, 1}),
        view(data.data(), {1, 3, 4}, {0, 5, 1}), view(data.data(), {2, 3, 4}, {0, 4, 1})}) {
    const matrix found = as_rows(x, copy);
    REQUIRE(found.extents() == heed::shape<2>{x.extent(0) * x.extent(1), 4});
    CHECK(found.stride(1) == 1);
    for_each_component(x, [&](index r, index c, double value) { CHECK(found(r, c) == value); });
  }
  CHECK(are_rows(view(data.data(), {2, 1, 4}, {40, 1, 1})));
  CHECK_FALSE(are_rows(view(data.data(), {2, 3, 4}, {0, 4, 1})));
}

}  // namespace heed_test
