#include "heed/reference/sinks.hpp"

#include <cmath>

#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference sinks: in the denominator only, and in the log-sum-exp") {
  auto plain = small_call::random(1, 2, 3, 5, 2, 1, 4, 3);
  auto sunk = small_call::random(1, 2, 3, 5, 2, 1, 4, 3);
  const std::vector<double> logits{20, -1};
  plain.run();
  sunk.run(heed::sinks{heed::tensor_view<const double, 1>(logits, {2})});
  for (index b = 0; b < 2; ++b)
    for (index i = 0; i < 3; ++i)
      for (index h = 0; h < 2; ++h) {
        const double before = plain.lse(0, b, i, h);
        const double after = std::log(std::exp(before) + std::exp(logits[h == 0 ? 0 : 1]));
        CHECK(sunk.lse(0, b, i, h) == Catch::Approx(after).epsilon(1e-14));
        for (index x = 0; x < 3; ++x) {
          CHECK(sunk.out(b, i, h, x) ==
                Catch::Approx(plain.out(b, i, h, x) * std::exp(before - after)).epsilon(1e-12));
        }
      }
}

TEST_CASE("reference sinks: a row without keys is 0, its log-sum-exp the sink") {
  small_call c(1, 2, 1, 1, 1, 1, 1);
  c.v.fill(5);
  c.options.mask = heed::causal();
  const std::vector<double> logits{20};
  c.run(heed::sinks{heed::tensor_view<const double, 1>(logits, {1})});
  CHECK(c.out(0, 0, 0, 0) == 0);
  CHECK(c.lse(0, 0, 0, 0) == 20);
}

TEST_CASE("reference sinks: a sink of -inf is none, two lists add") {
  auto plain = small_call::random(2, 1, 2, 3, 1, 1, 2, 2);
  auto none = small_call::random(2, 1, 2, 3, 1, 1, 2, 2);
  auto two = small_call::random(2, 1, 2, 3, 1, 1, 2, 2);
  auto one = small_call::random(2, 1, 2, 3, 1, 1, 2, 2);
  const std::vector<double> low{-infinity}, zero{0}, sum{std::log(2)};
  const auto sink = [](const std::vector<double>& x) {
    return heed::sinks{heed::tensor_view<const double, 1>(x, {1})};
  };
  plain.run();
  none.run(sink(low));
  CHECK(plain.out.elements == none.out.elements);
  CHECK(plain.lse.elements == none.lse.elements);
  two.run(sink(zero), sink(zero));
  one.run(sink(sum));
  CHECK(close(two.out, one.out));
  CHECK(close(two.lse, one.lse));
}

}  // namespace heed_test
