#include "heed/reference/alibi.hpp"

#include <cmath>

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference alibi: golden cases") {
  check_golden("alibi_");
}

TEST_CASE("reference alibi: the published slopes") {
  CHECK(heed::alibi_slopes(4) == std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625});
  CHECK(heed::alibi_slopes(3) == std::vector<double>{0.0625, 0.00390625, 0.25});
  CHECK(heed::alibi_slopes(0).empty());
  for (const index heads : {1, 2, 3, 5, 6, 7, 8, 12, 20}) {
    const std::vector<double> slopes = heed::alibi_slopes(heads);
    REQUIRE(static_cast<index>(slopes.size()) == heads);
    for (index h = 0; h < heads; ++h) {
      CHECK(heed::reference::alibi_slope<double>(h, heads) ==
            Catch::Approx(slopes[static_cast<std::size_t>(h)]).epsilon(1e-15));
    }
  }
}

TEST_CASE("reference alibi: newer keys gain, own slopes count from the position of the row") {
  small_call c(1, 1, 3, 1, 1, 1, 1);
  const std::vector<double> slopes{0.5};
  const std::vector<std::int32_t> start{1};
  c.v.elements = {1, 10, 100};
  c.options.mask = heed::full().query_starts(start);
  c.run(heed::alibi{slopes});
  const double a = std::exp(-0.5), b = 1, d = std::exp(0.5);
  CHECK(c.out(0, 0, 0, 0) == Catch::Approx((a + 10 * b + 100 * d) / (a + b + d)).epsilon(1e-14));
  CHECK(c.lse(0, 0, 0, 0) == Catch::Approx(std::log(a + b + d)).epsilon(1e-14));
  const std::vector<double> two{1, 2};
  CHECK_THROWS_AS(c.run(heed::alibi{two}), heed::shape_error);
}

}  // namespace heed_test
