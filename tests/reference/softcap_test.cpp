#include "heed/reference/softcap.hpp"

#include <cmath>

#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference softcap: cap tanh(L / cap) on scaled logits") {
  small_call c(1, 1, 2, 1, 1, 1, 1);
  c.q(0, 0, 0, 0) = 8;
  c.k.elements = {10, -1};
  c.v.elements = {1, 0};
  c.options.scale = 0.5;
  c.run(heed::softcap{30});
  const double a = 30 * std::tanh(40.0 / 30), b = 30 * std::tanh(-4.0 / 30);
  CHECK(c.out(0, 0, 0, 0) == Catch::Approx(1 / (1 + std::exp(b - a))).epsilon(1e-14));
}

TEST_CASE("reference softcap: hidden keys keep weight 0") {
  small_call c(1, 2, 2, 1, 1, 1, 1);
  c.v.elements = {1, 1e300};
  c.options.mask = heed::causal();
  c.run(heed::softcap{30});
  CHECK(c.out(0, 0, 0, 0) == 1);
  CHECK(c.lse(0, 0, 0, 0) == 0);
  // A bias of -inf before the cap hides as well.
  const std::vector<double> values{0, -infinity};
  c.options.mask = heed::full();
  c.run(heed::bias{heed::tensor_view<const double, 4>(values, {1, 1, 1, 2})}, heed::softcap{30});
  CHECK(c.out(0, 1, 0, 0) == 1);
}

TEST_CASE("reference softcap: refuses caps that are not above 0") {
  small_call c(1, 1, 1, 1, 1, 1, 1);
  for (const double cap : {0.0, -1.0, nan_value}) {
    CHECK_THROWS_AS(c.run(heed::softcap{cap}), heed::shape_error);
  }
}

}  // namespace heed_test
