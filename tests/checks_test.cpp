#include "heed/checks.hpp"

#include "catch.hpp"
#include "heed/reference/visibility.hpp"
#include "random_problem.hpp"

namespace heed_test {

TEST_CASE("checks: sequences of a call are those of the reference") {
  index empty = 0, packed = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const random_problem p(seed);
    CAPTURE(seed, p.text());
    const auto expected = heed::reference::sequences(p.call, p.mask);
    REQUIRE(heed::sequence_count(p.call, p.mask) == static_cast<index>(expected.size()));
    packed += p.mask.cu_q.given() ? 1 : 0;
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const heed::sequence s = heed::sequence_at(p.call, p.mask, static_cast<index>(n));
      const heed::sequence& e = expected[n];
      CHECK(s.batch == e.batch);
      CHECK(s.first_query == e.first_query);
      CHECK(s.first_key == e.first_key);
      CHECK(s.T == e.T);
      CHECK(s.S == e.S);
      CHECK(s.position == e.position);
      CHECK(s.key_end == e.key_end);
      // Where starts and lengths leave nothing, the range is empty rather than reversed.
      CHECK(s.key_begin == std::min(e.key_begin, e.key_end));
      empty += e.key_begin > e.key_end ? 1 : 0;
    }
  }
  CHECK(empty > 0);
  CHECK(packed > 0);
}

TEST_CASE("checks: hides_newer_keys is what the reference's rows see") {
  const std::array masks{heed::full(),
                         heed::causal(),
                         heed::causal().top_left(),
                         heed::window(2, 0),
                         heed::window(2, 1),
                         heed::causal().window(2, 1),
                         heed::window(2, 0).always_visible(1),
                         heed::causal().window(2, 0).always_visible(4),
                         heed::window(0, 3).always_visible(0)};
  for (const heed::mask& m : masks) {
    bool newer = false;
    const heed::sequence s{.T = 8, .S = 8, .position = -3, .key_end = 8};
    for (index i = 0; i < 8; ++i)
      for (index j = 0; j < 8; ++j) {
        newer = newer || (j > i - 3 && heed::reference::sees(m, s, 0, i, j));
      }
    CHECK(heed::hides_newer_keys(m) == !newer);
  }
}

namespace {

// Has both check hooks, and one of them alone.
struct both {
  int* calls;
  void check(const heed::problem&) const { *calls += 1; }
  void check(const heed::problem&, const heed::mask&) const { *calls += 10; }
};
struct with_mask {
  int* calls;
  void check(const heed::problem&, const heed::mask&) const { *calls += 10; }
};
struct without {};

}  // namespace

TEST_CASE("checks: a mechanism's hooks are called as it has them") {
  int calls = 0;
  heed::check_mechanism(both{&calls}, {}, {});
  CHECK(calls == 11);
  heed::check_mechanism(with_mask{&calls}, {}, {});
  CHECK(calls == 21);
  heed::check_mechanism(without{}, {}, {});
  CHECK(calls == 21);
}

TEST_CASE("checks: axes of extent 1 that may repeat") {
  float x[12] = {};
  const heed::tensor_view<float, 2> view(x, {1, 12});
  CHECK_NOTHROW(heed::check_extents("who", "x", view, {{{"rows", 5, true}, {"columns", 12}}}));
  CHECK_THROWS_WITH(heed::check_extents("who", "x", view, {{{"rows", 5}, {"columns", 12}}}),
                    "heed: who: x: axis 0 (rows) is 1, expected 5");
  CHECK_THROWS_WITH(heed::check_extents("who", "x", view, {{{"rows", 1}, {"columns", 3, true}}}),
                    "heed: who: x: axis 1 (columns) is 12, expected 1 or 3");
}

}  // namespace heed_test
