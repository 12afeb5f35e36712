#include "heed/reference/fox.hpp"

#include <cmath>
#include <numeric>

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {
namespace {

// A call with one head whose gates are log_f.
heed::fox<double> one_head(const std::vector<double>& log_f,
                           heed::gate convention = heed::gate::outside_scale) {
  return {heed::tensor_view<const double, 3>(log_f, {1, static_cast<index>(log_f.size()), 1}),
          convention};
}

}  // namespace

TEST_CASE("reference fox: golden cases") {
  check_golden("fox_");
}

TEST_CASE("reference fox: a gate of exactly 0 is a clean cut") {
  small_call c(1, 4, 4, 1, 1, 2, 1);
  c.v.elements = {1, 2, 4, 8};
  c.options.mask = heed::causal();
  for (const auto convention : {heed::gate::outside_scale, heed::gate::inside_scale}) {
    c.run(one_head({0, 0, -infinity, 0}, convention));
    CHECK(c.out.elements == std::vector<double>{1, 1.5, 4, 6});
    CHECK(c.lse(0, 0, 3, 0) == Catch::Approx(std::log(2)).epsilon(1e-15));
  }
}

TEST_CASE("reference fox: takes the gate of the query, leaves out that of the key") {
  small_call c(1, 3, 3, 1, 1, 4, 3);
  for (index j = 0; j < 3; ++j) c.v(0, j, 0, j) = 1;
  c.options.mask = heed::causal();
  c.run(one_head({-1000, -1, -2}));
  CHECK(c.lse(0, 0, 2, 0) == Catch::Approx(std::log(1 + std::exp(-2) + std::exp(-3))));
  CHECK(c.out(0, 2, 0, 0) / c.out(0, 2, 0, 2) == Catch::Approx(std::exp(-3)));
  c.run(one_head({-1000, -1, -2}, heed::gate::inside_scale));  // scale 1 / 2
  CHECK(c.out(0, 2, 0, 0) / c.out(0, 2, 0, 2) == Catch::Approx(std::exp(-1.5)));
  CHECK(c.out(0, 2, 0, 1) / c.out(0, 2, 0, 2) == Catch::Approx(std::exp(-1)));
}

TEST_CASE("reference fox: gates that no visible pair spans are not read") {
  auto clean = small_call::random(1, 1, 8, 8, 1, 1, 3, 2);
  auto dirty = small_call::random(1, 1, 8, 8, 1, 1, 3, 2);
  std::vector<double> log_f{-.1, -.2, -.3, -.4, -.5, -.6, -.7, -.8}, with_nan = log_f;
  for (const std::size_t s : {0U, 1U, 2U, 7U}) with_nan[s] = nan_value;
  const std::vector<std::int64_t> start{2};
  clean.options.mask = dirty.options.mask = heed::causal().key_starts(start);
  clean.run(one_head(log_f));
  dirty.run(one_head(with_nan));
  for (index i = 0; i < 7; ++i) CHECK(clean.out(0, i, 0, 0) == dirty.out(0, i, 0, 0));
  CHECK(std::isnan(dirty.out(0, 7, 0, 0)));  // row 7 has a gate of its own
}

TEST_CASE("reference fox: gates belong to tokens, whatever rows are given") {
  auto all = small_call::random(2, 1, 9, 9, 2, 1, 3, 2);
  const std::vector<double> log_f = normals(3, 9 * 2);
  const heed::fox m{heed::tensor_view<const double, 3>(log_f, {1, 9, 2})};
  all.options.mask = heed::causal();
  all.run(m);
  small_call last(1, 4, 9, 2, 1, 3, 2);
  last.k.elements = all.k.elements;
  last.v.elements = all.v.elements;
  for (const index first : {0, 3, 5}) {
    const std::vector<std::int64_t> start{first};
    for (index i = 0; i < 4; ++i)
      for (index h = 0; h < 2; ++h)
        for (index x = 0; x < 3; ++x) last.q(0, i, h, x) = all.q(0, first + i, h, x);
    last.options.mask = heed::causal();
    if (first < 5) last.options.mask = last.options.mask.query_starts(start);
    last.run(m);
    for (index i = 0; i < 4; ++i)
      for (index h = 0; h < 2; ++h) {
        CHECK(last.out(0, i, h, 1) == all.out(0, first + i, h, 1));
        CHECK(last.lse(0, 0, i, h) == all.lse(0, 0, first + i, h));
      }
  }
}

TEST_CASE("reference fox: tokens beyond the keys have no gate") {
  small_call c(1, 4, 2, 1, 1, 1, 1);
  c.v.elements = {1, 3};
  c.options.mask = heed::causal().top_left();
  c.run(one_head({-5, -1}));
  const double mean = (std::exp(-1) + 3) / (std::exp(-1) + 1);
  for (const index i : {1, 2, 3}) CHECK(c.out(0, i, 0, 0) == Catch::Approx(mean));
}

TEST_CASE("reference fox: pieces of a packed batch start fresh") {
  auto c = small_call::random(4, 1, 6, 6, 1, 1, 2, 2);
  const std::vector<std::int32_t> cu{0, 2, 6};
  c.options.mask = heed::causal().packed(cu, cu);
  c.run(one_head({nan_value, -1, nan_value, -.5, -.25, -2}));
  for (const double x : c.out.elements) CHECK(std::isfinite(x));
}

TEST_CASE("reference fox: refuses masks that show newer keys") {
  small_call c(1, 4, 4, 1, 1, 1, 1);
  const std::vector<double> g(4);
  for (const heed::mask& m :
       {heed::full(), heed::window(3, 1), heed::window(3, 0).always_visible(1)}) {
    c.options.mask = m;
    CHECK_THROWS_AS(c.run(one_head(g)), heed::shape_error);
    CHECK(std::isnan(c.out(0, 0, 0, 0)));
  }
  for (const heed::mask& m : {heed::window(3, 0), heed::causal().window(3, 1).always_visible(1)}) {
    c.options.mask = m;
    CHECK_NOTHROW(c.run(one_head(g)));
  }
  CHECK_THROWS_WITH(c.run(one_head({0, 0, 0})), "heed: fox: log_f: axis 1 (keys) is 3, expected 4");
}

}  // namespace heed_test
