// A golden case as a call of attend and attend_grad, in float or double.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"
#include "heed/attend_grad.hpp"
#include "heed/heed.hpp"

namespace heed_test {

// The tensors of a case and places for their gradients.
template <class T>
class golden_gradient_call {
 public:
  using value_type = T;
  const golden_case& from;

  explicit golden_gradient_call(const golden_case& one) : from(one) {}

  template <int Rank>
  heed::tensor_view<const T, Rank> tensor(const std::string& name) {
    auto found = arrays_.find(name);
    if (found == arrays_.end()) found = arrays_.emplace(name, from.tensor<T>(name)).first;
    return found->second.template view<T, Rank>();
  }
  // Where the gradient of a tensor goes; each that was asked for is compared.
  template <int Rank>
  heed::tensor_view<T, Rank> gradient(const std::string& name) {
    const auto like = tensor<Rank>(name);
    std::vector<T>& data = gradients_[name];
    data.assign(static_cast<std::size_t>(like.size()), T(7));
    return {data.data(), like.extents()};
  }
  heed::rope rope() const {
    return {
        from.real("rope_theta"),
        from.text("rope_style") == "half" ? heed::rope_pairs::half : heed::rope_pairs::interleaved,
        from.integer("rotary_dim"), from.integer("rope_offset")};
  }

  template <class... Mechanisms>
  void run(const heed::tuning& sizes, const std::tuple<Mechanisms...>& list) {
    const auto q = tensor<4>("q"), k = tensor<4>("k"), v = tensor<4>("v"), dout = tensor<4>("dout");
    std::vector<T> out(static_cast<std::size_t>(dout.size()));
    std::vector<T> lse(static_cast<std::size_t>(q.size() / q.extent(3)));
    heed::attend_options<T> options{.scale = from.real("scale"), .tuning = sizes};
    if (from.flag("causal")) options.mask = heed::causal();
    if (from.has("window_size")) {
      options.mask = options.mask.window(from.integer("window_size") - 1, 0);
    }
    options.lse = {lse.data(), {q.extent(0), q.extent(1), q.extent(2)}};
    const heed::tensor_view<T, 4> o(out.data(), dout.extents());
    heed::gradients<T> grads;
    grads.q = gradient<4>("q");
    grads.k = gradient<4>("k");
    grads.v = gradient<4>("v");
    std::apply(
        [&](const auto&... m) {
          heed::attend(q, k, v, o, options, m...);
          heed::attend_grad(q, k, v, o, options.lse, dout, grads, options, m...);
        },
        list);
  }

  // The largest error of a tensor over the larger of its own largest gradient and a hundredth of
  // the case's largest; errors below `negligible` count as 0.
  double error(double negligible) const {
    std::map<std::string, std::vector<double>> expected;
    double largest = 0, worst = 0;
    for (const auto& [name, found] : gradients_) {
      const heed::io::npy_array stored = from.tensor<double>("d_" + name);
      const auto values = stored.values<double>();
      expected[name].assign(values.begin(), values.end());
      for (const double x : values) largest = std::max(largest, std::abs(x));
    }
    for (const auto& [name, found] : gradients_) {
      const std::vector<double>& e = expected[name];
      double own = largest / 100, error = 0;
      REQUIRE(found.size() == e.size());
      for (std::size_t n = 0; n < e.size(); ++n) {
        own = std::max(own, std::abs(e[n]));
        const double difference = std::abs(static_cast<double>(found[n]) - e[n]);
        if (!(difference <= error)) error = difference;
      }
      if (error >= negligible && !(error / own <= worst)) worst = error / own;
    }
    return worst;
  }

 private:
  std::map<std::string, heed::io::npy_array> arrays_;
  std::map<std::string, std::vector<T>> gradients_;
};

// Every golden case of a kind in both types, with heed's own sizes and small ones. list(call) ->
// tuple of mechanisms.
template <class List>
void check_golden_gradients(const std::string& prefix, const List& list, double tolerance = 1e-10,
                            double float_tolerance = 2e-5) {
  for (const golden_case& one : golden_cases(prefix)) {
    for (const heed::tuning& sizes : {heed::tuning{}, heed::tuning{5, 7}, heed::tuning{16, 64}}) {
      CAPTURE(one.name(), sizes.rows, sizes.panel);
      golden_gradient_call<double> exact(one);
      exact.run(sizes, list(exact));
      CHECK(exact.error(1e-13) <= tolerance);
      golden_gradient_call<float> single(one);
      single.run(sizes, list(single));
      CHECK(single.error(1e-6) <= float_tolerance);
    }
  }
}

}  // namespace heed_test
