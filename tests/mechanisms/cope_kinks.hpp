// How far a call of CoPE is from where its gradient jumps.
#pragma once

#include <cmath>
#include <limits>

#include "gradient.hpp"
#include "heed/mechanisms/cope.hpp"
#include "mechanisms/cope_calls.hpp"

namespace heed_test {

// In the reference's list directly before CoPE: the distance of the position nearest to a whole
// number below npos, where the slope changes.
struct cope_kinks {
  static constexpr heed::place where = heed::place::logits;
  heed::cope<double> m;
  double* nearest;
};
template <class T>
void apply_reference(const cope_kinks& k, heed::reference::state<T>& s) {
  const double end = static_cast<double>(k.m.embedding.extent(2) - 1);
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      double p = 0;
      for (index j = s.seq.S - 1; j >= 0; --j) {
        if (!s.visible(h, i, j)) continue;
        p += 1 / (1 + std::exp(-heed::reference::gate_logit(k.m, s, h, i, j)));
        *k.nearest = std::min(*k.nearest, p > end ? p - end : std::abs(p - std::round(p)));
      }
    }
  }
}

template <class... Before>
double distance_to_kink(const random_problem& x, const heed::cope<double>& m,
                        const std::tuple<Before...>& before) {
  const heed::problem& p = x.call;
  std::vector<double> out(static_cast<std::size_t>(p.B * p.T * p.Hq * p.Dv));
  double nearest = 1;
  std::apply(
      [&](const auto&... stages) {
        heed::reference::attend<double>(
            x.q.template read<double>(), x.k.template read<double>(), x.v.template read<double>(),
            heed::tensor_view<double, 4>(out, {p.B, p.T, p.Hq, p.Dv}),
            heed::attend_options<double>{.mask = x.mask}, stages..., cope_kinks{m, &nearest});
      },
      before);
  return nearest;
}

// CoPE with places for its gradients.
template <class T>
auto cope_with_gradients(const cope_parameters& m, gradient_memory<T>& to) {
  const heed::cope<T> stage = m.of<T>();
  heed::cope_grad<T> d;
  d.embedding = to.like("embedding", stage.embedding);
  if (m.gates == heed::cope_gates::separate_keys) {
    d.gate_keys = to.like("gate_keys", stage.gate_keys);
  }
  return heed::with_grad(stage, d);
}

// Differences in double on `wanted` random calls away from kinks, and another block size. before(x,
// m) and list(x, m) as in check_gradients: the stages before CoPE, and all of them.
struct cope_call {
  random_problem x;
  cope_parameters m;
  heed::tuning sizes, others;
  std::uint64_t seed;

  explicit cope_call(std::uint64_t n, const random_limits& limits)
      : x(n, limits),
        m(x, 20),
        sizes(all_tunings[n % all_tunings.size()]),
        others(all_tunings[(n + 1) % all_tunings.size()]),
        seed(n) {}
};
template <class Before, class Make>
bool check_cope_differences(cope_call& c, const Before& before, Make& make) {
  if (distance_to_kink(c.x, c.m.of<double>(), before) < 1e-4) return false;
  INFO("seed " << c.seed << " " << c.x.text() << " rows " << c.sizes.rows << " panel "
               << c.sizes.panel);
  gradient_memory<double> memory;
  const auto errors = std::apply(
      [&](const auto&... stages) {
        return heed::reference::gradient_check(
            c.x.q.view<double>(), c.x.k.view<double>(), c.x.v.view<double>(),
            {.mask = c.x.mask, .tuning = c.sizes}, {.samples = 4, .step = 1e-6, .seed = c.seed},
            stages...);
      },
      make(double(), memory));
  for (const auto& [tensor, error] : errors) {
    INFO(tensor);
    CHECK(error <= 1e-6);
  }
  const auto expected = gradients_of<double>(c.x, c.sizes, make);
  CHECK(gradient_distance(gradients_of<double>(c.x, c.others, make), expected) <= 1e-11);
  return true;
}

}  // namespace heed_test
