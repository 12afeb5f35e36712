// The mechanism that the examples show is one: it runs, composes, and is held to the contract.
#include "../examples/own_mechanism/slope_bias.hpp"

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "random_problem.hpp"

TEST_CASE("A user's mechanism agrees with its own reference, alone and among others") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    heed_test::random_problem x(seed);
    const heed::problem& p = x.call;
    CAPTURE(seed, x.text());
    std::vector<double> found(static_cast<std::size_t>(p.B * p.T * p.Hq * p.Dv)), expected(found);
    const heed::tensor_view<double, 4> f(found.data(), {p.B, p.T, p.Hq, p.Dv}),
        e(expected.data(), {p.B, p.T, p.Hq, p.Dv});
    const auto q = x.q.read<double>(), k = x.k.read<double>(), v = x.v.read<double>();
    const slope_bias slope{0.3};
    for (const heed::tuning& t : {heed::tuning{}, heed::tuning{3, 3}, heed::tuning{5, 16}}) {
      CAPTURE(t.rows, t.panel);
      heed::attend(q, k, v, f, {.mask = x.mask, .tuning = t}, slope);
      heed::reference::attend<double>(q, k, v, e, {.mask = x.mask}, slope);
      REQUIRE(heed_test::relative_error(f, e, 0.1) <= 1e-13);
      heed::attend(q, k, v, f, {.mask = x.mask, .tuning = t}, heed::alibi{}, slope,
                   heed::softcap{3});
      heed::reference::attend<double>(q, k, v, e, {.mask = x.mask}, heed::alibi{}, slope,
                                      heed::softcap{3});
      REQUIRE(heed_test::relative_error(f, e, 0.1) <= 1e-13);
    }
  }
}

TEST_CASE("A user's mechanism can refuse a call") {
  std::vector<double> x(4, 1.0);
  const heed::tensor_view<double, 4> view(x.data(), {1, 2, 1, 2});
  std::vector<double> y(4, 1.0);
  const heed::tensor_view<double, 4> out(y.data(), {1, 2, 1, 2});
  CHECK_THROWS_AS(heed::attend(view, view, view, out, {}, slope_bias{-1}), heed::shape_error);
  CHECK(y == std::vector<double>(4, 1.0));
}

TEST_CASE("The mechanism of the examples is under 60 lines, its reference included") {
  std::ifstream file(std::string(HEED_TEST_GOLDEN_DIR) +
                     "/../../examples/own_mechanism/slope_bias.hpp");
  REQUIRE(file);
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  CHECK(lines > 20);
  CHECK(lines < 60);
}
