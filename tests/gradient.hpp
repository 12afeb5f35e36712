// Gradients of random calls: differences in double, and other sizes, types and threads against
// them.
#pragma once

#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "compare.hpp"
#include "heed/attend_grad.hpp"
#include "heed/reference/gradient_check.hpp"
#include "random_problem.hpp"

namespace heed_test {

// Memory for gradients by name; holds 7 until somebody writes there.
template <class T>
class gradient_memory {
 public:
  template <int Rank>
  heed::tensor_view<T, Rank> view(const std::string& name, const heed::shape<Rank>& extents) {
    index size = 1;
    for (const index e : extents) size *= e;
    std::vector<T>& data = tensors_[name];
    if (data.empty()) data.assign(static_cast<std::size_t>(size), T(7));
    return {data.data(), extents};
  }
  // As a tensor that it is the gradient of.
  template <class U, int Rank>
  heed::tensor_view<T, Rank> like(const std::string& name, const heed::tensor_view<U, Rank>& x) {
    return view<Rank>(name, x.extents());
  }
  std::map<std::string, std::vector<T>>& tensors() { return tensors_; }
  const std::map<std::string, std::vector<T>>& tensors() const { return tensors_; }

 private:
  std::map<std::string, std::vector<T>> tensors_;
};

// Largest error of each tensor as those of the golden cases are measured: over the larger of the
// tensor's own largest value and a hundredth of the largest of all.
template <class A, class B>
double gradient_distance(const gradient_memory<A>& found, const gradient_memory<B>& expected) {
  double largest = 0, worst = 0;
  for (const auto& [name, values] : expected.tensors()) {
    for (const B x : values) largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  for (const auto& [name, values] : expected.tensors()) {
    const std::vector<A>& other = found.tensors().at(name);
    REQUIRE(other.size() == values.size());
    double own = largest / 100, error = 0;
    for (std::size_t n = 0; n < values.size(); ++n) {
      const auto e = static_cast<double>(values[n]), f = static_cast<double>(other[n]);
      own = std::max(own, std::abs(e));
      const double difference = std::abs(f - e);
      if (!(difference <= error)) error = difference;
    }
    const double relative = error == 0 ? 0 : error / own;
    if (!(relative <= worst)) worst = relative;
  }
  return worst;
}

// attend and attend_grad on a random problem, with a random gradient of output and log-sum-exp.
// make(T(), memory) -> tuple of mechanisms.
template <class T, class Make>
gradient_memory<T> gradients_of(const random_problem& x, const heed::tuning& sizes, Make& make,
                                heed::executor_ref executor = {}) {
  const heed::problem& p = x.call;
  twin<4> out({p.B, p.T, p.Hq, p.Dv}, layout::fused), dout = out;
  twin<3> lse({p.B, p.T, p.Hq}, layout::every_second), dlse = lse;
  random_source random(99);
  dout.fill([&] { return random.uniform(-1, 1); });
  dlse.fill([&] { return random.uniform(-1, 1); });
  gradient_memory<T> memory;
  std::apply(
      [&](const auto&... m) {
        heed::attend_options<T> options{.mask = x.mask, .executor = executor, .tuning = sizes};
        options.lse = lse.view<T>();
        const auto q = x.q.read<T>();
        const auto k = x.k.read<T>();
        const auto v = x.v.read<T>();
        heed::attend(q, k, v, out.view<T>(), options, m...);
        heed::gradients<T> g;
        g.q = memory.like("q", q);
        g.k = memory.like("k", k);
        g.v = memory.like("v", v);
        g.lse = dlse.read<T>();
        heed::attend_grad(q, k, v, out.read<T>(), lse.read<T>(), dout.read<T>(), g, options, m...);
      },
      make(T(), memory));
  return memory;
}

// Differences on random problems in double, with panels down to 3 keys; then the same gradients in
// double with other sizes, and with Single = float in float. parameters(problem) draws tensors and
// returns make(type, memory) -> tuple of mechanisms.
template <class Single = void, class Parameters>
void check_gradients(std::uint64_t first_seed, std::uint64_t seeds, const random_limits& limits,
                     const Parameters& parameters, index smallest_head = 1, double tolerance = 1e-7,
                     double float_tolerance = 2e-5) {
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    random_problem x(seed, limits);
    if (x.call.D < smallest_head) continue;
    auto make = parameters(x);
    const heed::tuning& sizes = all_tunings[seed % all_tunings.size()];
    INFO("seed " << seed << " " << x.text() << " rows " << sizes.rows << " panel " << sizes.panel);
    gradient_memory<double> memory;
    const auto errors = std::apply(
        [&](const auto&... m) {
          return heed::reference::gradient_check(
              x.q.template view<double>(), x.k.template view<double>(), x.v.template view<double>(),
              {.mask = x.mask, .tuning = sizes}, {.samples = 4, .seed = seed}, m...);
        },
        make(double(), memory));
    for (const auto& [tensor, error] : errors) {
      INFO(tensor);
      CHECK(error <= tolerance);
    }
    const auto expected = gradients_of<double>(x, sizes, make);
    const auto other = gradients_of<double>(x, all_tunings[(seed + 1) % all_tunings.size()], make);
    CHECK(gradient_distance(other, expected) <= 1e-11);
    if constexpr (!std::is_void_v<Single>) {
      CHECK(gradient_distance(gradients_of<Single>(x, sizes, make), expected) <= float_tolerance);
    }
  }
}

}  // namespace heed_test
