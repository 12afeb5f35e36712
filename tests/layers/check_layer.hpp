// A layer held against a reference of it: forward, gradients of x and of every parameter against
// differences of the reference, decoding in chunks.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "heed/reference/layer_parts.hpp"
#include "layer/any_layer.hpp"
#include "random_problem.hpp"

namespace heed_test {

using any_layer = layer_program::any_layer<double>;
using tokens_view = heed::tensor_view<const double, 3>;
using output_view = heed::tensor_view<double, 3>;

// y = layer(x) with the parameters given by their official names.
using layer_reference = std::function<void(const heed::reference::layer_tensors<double>&,
                                           const tokens_view& x, const output_view& y)>;

class layer_check {
 public:
  layer_check(any_layer& layer, layer_reference reference, heed::index batch, heed::index tokens,
              heed::index model_dim, std::uint64_t seed)
      : layer_(layer),
        reference_(std::move(reference)),
        extents_{batch, tokens, model_dim},
        random_(seed) {
    layer_.initialize(seed);
    for (const auto& p : layer_.parameters()) {
      // Nothing at its initial value: norms near 1, all else around what it was.
      for (double& value : p.value) value += random_.uniform(-0.5, 0.5);
    }
    for (std::vector<double>* values : {&x_, &dy_}) {
      values->resize(static_cast<std::size_t>(batch * tokens * model_dim));
      for (double& value : *values) value = random_.uniform(-1, 1);
    }
  }

  void forward() {
    const std::vector<double> expected = referred();
    std::vector<double> y(x_.size(), 7);
    layer_.infer(read(x_), write(y));
    CHECK(distance(y, expected) <= 1e-12);
    std::fill(y.begin(), y.end(), 7);
    layer_.forward(read(x_), write(y));
    CHECK(distance(y, expected) <= 1e-12);
  }

  // Every parameter and x along a random direction and at single elements. The differences are of
  // order 4; `step` is small where the layer has kinks.
  void gradients(double tolerance, double step = 1e-4) {
    std::vector<double> y(x_.size()), dx(x_.size(), 7);
    layer_.forward(read(x_), write(y));
    layer_.zero_gradients();
    layer_.backward(read(x_), read(dy_), write(dx));
    double largest = largest_of(dx);
    for (const auto& p : layer_.parameters()) {
      largest = std::max(largest, largest_of({p.gradient.begin(), p.gradient.end()}));
    }
    check_gradient("x", x_, dx, tolerance * largest, step);
    for (const auto& p : layer_.parameters()) {
      CHECK(p.learned == !p.gradient.empty());
      if (p.learned) check_gradient(p.name, p.value, p.gradient, tolerance * largest, step);
    }
    // Gradients of parameters add up.
    std::vector<std::vector<double>> once;
    for (const auto& p : layer_.parameters())
      once.push_back({p.gradient.begin(), p.gradient.end()});
    layer_.forward(read(x_), write(y));
    layer_.backward(read(x_), read(dy_), {});
    std::size_t n = 0;
    for (const auto& p : layer_.parameters()) {
      INFO(p.name);
      for (double& g : once[n]) g *= 2;
      CHECK(distance({p.gradient.begin(), p.gradient.end()}, once[n++], largest) <= 1e-12);
    }
  }

  // Chunks of these sizes, repeated.
  void decode(const std::vector<heed::index>& chunks) {
    const std::vector<double> expected = referred();
    std::vector<double> y(x_.size(), 7);
    layer_.start(extents_[0]);
    std::size_t n = 0;
    for (heed::index t = 0; t < extents_[1]; ++n) {
      const heed::index end = std::min(extents_[1], t + chunks[n % chunks.size()]);
      layer_.decode(read(x_).slice(1, t, end), write(y).slice(1, t, end));
      t = end;
    }
    CHECK(distance(y, expected) <= 1e-12);
  }

 private:
  tokens_view read(const std::vector<double>& values) const { return {values.data(), extents_}; }
  output_view write(std::vector<double>& values) const { return {values.data(), extents_}; }

  std::vector<double> referred() {
    heed::reference::layer_tensors<double> tensors;
    const auto list = layer_.parameters();
    std::vector<std::string> names;
    for (const auto& p : list) names.push_back(p.name);
    for (const auto& p : list) {
      tensors[heed::layers::official_name(layer_.names(), p.name, names)] = {
          {p.shape.begin(), p.shape.end()}, {p.value.begin(), p.value.end()}};
    }
    std::vector<double> y(x_.size());
    reference_(tensors, read(x_), write(y));
    return y;
  }
  double loss() {
    const std::vector<double> y = referred();
    double sum = 0;
    for (std::size_t n = 0; n < y.size(); ++n) sum += y[n] * dy_[n];
    return sum;
  }

  void check_gradient(const std::string& name, std::span<double> values,
                      std::span<const double> gradient, double allowed, double step) {
    INFO(name);
    std::vector<double> direction(values.size());
    for (double& d : direction) d = random_.uniform(-1, 1);
    CHECK(deviation(values, gradient, direction, step) <= allowed);
    for (int sample = 0; sample < 2; ++sample) {
      std::fill(direction.begin(), direction.end(), 0);
      const auto at = static_cast<std::size_t>(
          random_.uniform(0, 1) * static_cast<double>(values.size() - 1) + 0.5);
      direction[at] = 1;
      CHECK(deviation(values, gradient, direction, step) <= allowed);
    }
  }
  double deviation(std::span<double> values, std::span<const double> gradient,
                   const std::vector<double>& direction, double step) {
    const std::vector<double> old(values.begin(), values.end());
    double expected = 0;
    for (std::size_t n = 0; n < old.size(); ++n) expected += gradient[n] * direction[n];
    const auto at = [&](double t) {
      for (std::size_t n = 0; n < old.size(); ++n) values[n] = old[n] + t * direction[n];
      return loss();
    };
    const double near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
    std::copy(old.begin(), old.end(), values.begin());
    return std::abs((8 * near - far) / (12 * step) - expected);
  }

  static double largest_of(const std::vector<double>& values) {
    double most = 0;
    for (const double x : values) most = std::max(most, std::abs(x));
    return most;
  }
  // Over the largest that is expected, or `unit`.
  static double distance(const std::vector<double>& found, const std::vector<double>& expected,
                         double unit = 0) {
    REQUIRE(found.size() == expected.size());
    double worst = 0;
    for (std::size_t n = 0; n < found.size(); ++n) {
      const double d = std::abs(found[n] - expected[n]);
      if (!(d <= worst)) worst = d;
    }
    const double largest = std::max(unit, largest_of(expected));
    return worst == 0 ? 0 : worst / largest;
  }

  any_layer& layer_;
  layer_reference reference_;
  heed::shape<3> extents_;
  random_source random_;
  std::vector<double> x_, dy_;
};

}  // namespace heed_test
