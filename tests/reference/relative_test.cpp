#include "heed/reference/relative.hpp"

#include <cmath>

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference relative: golden cases") {
  check_golden("rel_");
}

TEST_CASE("reference relative: distances from the last column, far and newer keys") {
  // D = 1, k = 0: logits are scale * q * e.
  small_call c(1, 1, 5, 1, 1, 1, 5);
  const std::vector<double> e{3, 5};  // distance 1, distance 0
  const std::vector<std::int32_t> start{3};
  c.q(0, 0, 0, 0) = 1;
  c.options.scale = 0.5;
  c.options.mask = heed::full().query_starts(start);
  for (index j = 0; j < 5; ++j) c.v(0, j, 0, j) = 1;
  for (const bool extend : {false, true}) {
    c.run(heed::relative{heed::tensor_view<const double, 2>(e, {1, 2}), extend});
    const double far = extend ? std::exp(1.5) : 1;
    const double weights[] = {far, far, std::exp(1.5), std::exp(2.5), 1};
    double sum = 0;
    for (const double w : weights) sum += w;
    for (index j = 0; j < 5; ++j) {
      CHECK(c.out(0, 0, 0, j) == Catch::Approx(weights[j] / sum).epsilon(1e-14));
    }
  }
}

TEST_CASE("reference relative: reads the caller's q") {
  auto with = small_call::random(5, 1, 6, 6, 1, 1, 4, 2);
  auto without = small_call::random(5, 1, 6, 6, 1, 1, 4, 2);
  const std::vector<double> e = normals(6, 4 * 6);
  const heed::relative m{heed::tensor_view<const double, 2>(e, {4, 6})};
  // With k = 0 rotating q and k changes no product: what is left is r.
  with.k.fill(0);
  without.k.fill(0);
  with.options.mask = without.options.mask = heed::causal();
  with.run(heed::rope{}, m);
  without.run(m);
  CHECK(with.out.elements == without.out.elements);
}

}  // namespace heed_test
