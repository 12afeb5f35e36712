#include "heed/reference/cope.hpp"

#include <cmath>
#include <numeric>

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference cope: golden cases") {
  check_golden("cope_");
}

TEST_CASE("reference cope: positions count from the key, stop at npos - 1") {
  // Separate keys of 0: every gate is 0.5, so p = 0.5, 1, 1.5, ... from the newest key, up to 3.
  small_call c(1, 1, 16, 1, 1, 1, 16);
  const std::vector<double> u(16), e{0, 1, 4, 9};
  for (index j = 0; j < 16; ++j) c.v(0, j, 0, j) = 1;
  c.q(0, 0, 0, 0) = 1;
  c.options.mask = heed::causal();
  c.run(heed::cope{heed::tensor_view<const double, 2>(e, {1, 4}), heed::cope_scale::divided,
                   heed::cope_gates::separate_keys,
                   heed::tensor_view<const double, 4>(u, {1, 16, 1, 1})});
  const double z[] = {0.5, 1, 2.5, 4, 6.5, 9};
  for (index n = 1; n < 16; ++n) {
    const double expected = z[std::min<index>(n, 5)] - z[0];
    CHECK(std::log(c.out(0, 0, 0, 15 - n) / c.out(0, 0, 0, 15)) == Catch::Approx(expected));
  }
}

TEST_CASE("reference cope: hidden keys count 0, so padding changes nothing") {
  auto plain = small_call::random(1, 1, 6, 6, 4, 2, 3, 2);
  auto padded = small_call::random(1, 1, 6, 11, 4, 2, 3, 2);
  padded.k.fill(nan_value);
  padded.v.fill(nan_value);
  for (index j = 0; j < 6; ++j)
    for (index h = 0; h < 2; ++h) {
      for (index x = 0; x < 3; ++x) padded.k(0, j + 5, h, x) = plain.k(0, j, h, x);
      for (index x = 0; x < 2; ++x) padded.v(0, j + 5, h, x) = plain.v(0, j, h, x);
    }
  const std::vector<std::int64_t> start{5};
  const std::vector<double> e = normals(2, 3 * 4);
  const heed::cope m{heed::tensor_view<const double, 2>(e, {3, 4})};
  plain.options.mask = heed::causal();
  padded.options.mask = heed::causal().key_starts(start);
  CHECK(plain.run(m).out.elements == padded.run(m).out.elements);
}

TEST_CASE("reference cope: z reads the caller's q, gates the logits that arrive") {
  // A bias of -inf closes the gates of keys 0..2: they count nothing and get no weight.
  auto biased = small_call::random(3, 1, 5, 5, 1, 1, 4, 2);
  auto hidden = small_call::random(3, 1, 5, 5, 1, 1, 4, 2);
  const std::vector<double> low{-infinity, -infinity, -infinity, 0, 0}, e = normals(4, 4 * 3);
  const std::vector<std::int64_t> start{3};
  const heed::cope m{heed::tensor_view<const double, 2>(e, {4, 3}), heed::cope_scale::undivided};
  const heed::bias lows{heed::tensor_view<const double, 4>(low, {1, 1, 1, 5})};
  biased.options.mask = heed::causal();
  hidden.options.mask = heed::causal().key_starts(start);
  CHECK(biased.run(lows, m).out.elements == hidden.run(m).out.elements);

  // k = 0: all gates are 0.5 with and without RoPE, and z must be the same.
  auto turned = small_call::random(3, 1, 5, 5, 1, 1, 4, 2);
  auto still = small_call::random(3, 1, 5, 5, 1, 1, 4, 2);
  turned.k.fill(0);
  still.k.fill(0);
  CHECK(turned.run(heed::rope{}, m).out.elements == still.run(m).out.elements);
}

TEST_CASE("reference cope: refuses what does not fit") {
  small_call c(1, 4, 4, 2, 1, 3, 2);
  const std::vector<double> e(3 * 5 * 2), u(4 * 3);
  const heed::tensor_view<const double, 4> keys(u, {1, 4, 1, 3});
  const heed::tensor_view<const double, 2> table(e, {3, 5});
  using heed::cope_gates;
  using heed::cope_scale;
  CHECK_THROWS_WITH(c.run(heed::cope{heed::tensor_view<const double, 2>(e, {2, 5})}),
                    "heed: cope: embedding: axis 1 (head size) is 2, expected 3");
  CHECK_THROWS_AS(c.run(heed::cope{heed::tensor_view<const double, 2>(e, {3, 0})}),
                  heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::cope{table, cope_scale::divided, cope_gates::values}),
                  heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::cope{table, cope_scale::divided, cope_gates::separate_keys}),
                  heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::cope{table, cope_scale::divided, cope_gates::keys, keys}),
                  heed::shape_error);
  CHECK_NOTHROW(c.run(heed::cope{table, cope_scale::divided, cope_gates::separate_keys, keys}));
}

}  // namespace heed_test
