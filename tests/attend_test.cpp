// Plain attention against the reference: random calls, every length around the block sizes, odd
// head sizes.
#include "heed/attend.hpp"

#include "compare.hpp"

using namespace heed_test;

namespace {

constexpr auto plain = [](auto) { return std::tuple<>(); };

}  // namespace

TEMPLATE_TEST_CASE("attend equals the reference on random calls", "", float, double) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const random_problem p(seed);
    check_against_reference<TestType>(p, all_tunings[seed % all_tunings.size()], plain);
  }
}

TEMPLATE_TEST_CASE("attend equals the reference for every length up to two panels", "", float,
                   double) {
  for (heed::index length = 0; length <= 2 * 16 + 1; ++length) {
    random_problem p(static_cast<std::uint64_t>(length));
    p.call = {1, length, length, 2, 1, 5, 3, 0.4};
    p.mask = length % 2 == 0 ? heed::causal() : heed::full();
    p.q = p.tensor<4>({1, length, 2, 5});
    p.k = p.tensor<4>({1, length, 1, 5});
    p.v = p.tensor<4>({1, length, 1, 3});
    check_against_reference<TestType>(p, {16, 16}, plain);
    check_against_reference<TestType>(p, {12, 3}, plain);
    check_against_reference<TestType>(p, {}, plain);
  }
}

TEMPLATE_TEST_CASE("attend equals the reference for long calls and odd head sizes", "", float,
                   double) {
  for (const heed::index D : {1, 3, 37, 60, 64, 100, 128}) {
    for (const heed::index length : {255, 257}) {
      random_problem p(static_cast<std::uint64_t>(D + length));
      const heed::index Dv = D == 60 ? 100 : D;
      p.call = {1, length, length, 2, 2, D, Dv, 0};
      p.mask = heed::causal();
      p.q = p.tensor<4>({1, length, 2, D});
      p.k = p.tensor<4>({1, length, 2, D});
      p.v = p.tensor<4>({1, length, 2, Dv});
      check_against_reference<TestType>(p, {}, plain);
    }
  }
}
