#include "heed/reference/softmax.hpp"

#include <cmath>
#include <numeric>

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference softmax: golden cases") {
  check_golden("softmax_");
}

TEST_CASE("reference softmax: a narrow window over a long sequence") {
  // With q = k = 0 a row is the mean of the values that it sees.
  small_call c(1, 640, 640, 1, 1, 2, 1);
  for (index j = 0; j < 640; ++j) c.v(0, j, 0, 0) = static_cast<double>(j * j);
  c.options.mask = heed::causal().window(9, 0);
  c.run();
  for (index i = 0; i < 640; ++i) {
    const index first = std::max<index>(0, i - 9);
    double sum = 0;
    for (index j = first; j <= i; ++j) sum += static_cast<double>(j * j);
    const auto count = static_cast<double>(i - first + 1);
    CHECK(c.out(0, i, 0, 0) == Catch::Approx(sum / count).epsilon(1e-14));
    CHECK(c.lse(0, 0, i, 0) == Catch::Approx(std::log(count)).margin(1e-15));
  }
}

TEST_CASE("reference softmax: a row without keys is 0 and -inf") {
  for (const index hidden : {0, 2}) {
    auto c = small_call::random(1, 2, 4, 4, 2, 1, 3, 2);
    auto plain = small_call::random(1, 2, 4, 4, 2, 1, 3, 2);
    bool shown[2 * 4 * 4];
    for (bool& x : shown) x = true;
    for (index j = 0; j < 4; ++j) shown[(1 * 4 + hidden) * 4 + j] = false;
    c.options.mask = heed::full().visible(heed::tensor_view<const bool, 4>(shown, {2, 1, 4, 4}));
    c.run();
    plain.run();
    for (index b = 0; b < 2; ++b)
      for (index i = 0; i < 4; ++i)
        for (index h = 0; h < 2; ++h) {
          const bool empty = b == 1 && i == hidden;
          CHECK(c.lse(0, b, i, h) == (empty ? -infinity : plain.lse(0, b, i, h)));
          for (index x = 0; x < 2; ++x) {
            CHECK(c.out(b, i, h, x) == (empty ? 0 : plain.out(b, i, h, x)));
          }
        }
  }
}

TEST_CASE("reference softmax: NaN and infinities in hidden keys do not leak") {
  auto clean = small_call::random(2, 2, 5, 7, 2, 2, 3, 4);
  auto dirty = small_call::random(2, 2, 5, 7, 2, 2, 3, 4);
  const std::vector<std::int64_t> lengths{4, 6};
  const std::vector<std::int64_t> starts{1, 0};
  clean.options.mask = dirty.options.mask = heed::full().key_lengths(lengths).key_starts(starts);
  for (const index b : {0, 1})
    for (const index j : {0, 4, 5, 6}) {
      const auto n = static_cast<std::size_t>(b);
      if (j >= starts[n] && j < lengths[n]) continue;
      for (index h = 0; h < 2; ++h) {
        for (index x = 0; x < 3; ++x) dirty.k(b, j, h, x) = j % 2 == 0 ? nan_value : infinity;
        for (index x = 0; x < 4; ++x) dirty.v(b, j, h, x) = j % 2 == 0 ? -infinity : nan_value;
      }
    }
  clean.run();
  dirty.run();
  CHECK(clean.out.elements == dirty.out.elements);
  CHECK(clean.lse.elements == dirty.lse.elements);
}

TEST_CASE("reference softmax: NaN and +inf in visible logits give NaN, not 0") {
  for (const double bad : {nan_value, infinity}) {
    small_call c(1, 1, 3, 1, 1, 1, 1);
    c.q(0, 0, 0, 0) = 1;
    c.k(0, 1, 0, 0) = bad;
    c.run();
    CHECK(std::isnan(c.out(0, 0, 0, 0)));
  }
}

TEST_CASE("reference softmax: causal masks align at the last query and key") {
  small_call two(1, 2, 5, 1, 1, 1, 1);
  std::iota(two.v.elements.begin(), two.v.elements.end(), 1.0);
  two.options.mask = heed::causal();
  two.run();
  CHECK(two.out(0, 0, 0, 0) == 2.5);  // keys 1 2 3 4
  CHECK(two.out(0, 1, 0, 0) == 3.0);
  two.options.mask = heed::causal().top_left();
  two.run();
  CHECK(two.out(0, 0, 0, 0) == 1.0);
  CHECK(two.out(0, 1, 0, 0) == 1.5);
  const std::vector<std::int32_t> start{2};
  two.options.mask = heed::causal().top_left().query_starts(start);
  two.run();
  CHECK(two.out(0, 0, 0, 0) == 2.0);
  CHECK(two.out(0, 1, 0, 0) == 2.5);

  small_call five(1, 5, 2, 1, 1, 1, 1);
  five.v.elements = {1, 2};
  five.options.mask = heed::causal();
  five.run();
  CHECK(five.out.elements == std::vector<double>{0, 0, 0, 1, 1.5});
  CHECK(five.lse(0, 0, 2, 0) == -infinity);
}

TEST_CASE("reference softmax: the first keys stay visible beside a window") {
  small_call c(1, 6, 6, 1, 1, 1, 1);
  c.v.elements = {1, 2, 4, 8, 16, 32};
  c.options.mask = heed::window(1, 0).always_visible(2);
  c.run();
  CHECK(c.out(0, 0, 0, 0) == 1.5);  // key 1 is newer, and shown
  CHECK(c.out(0, 5, 0, 0) == (1 + 2 + 16 + 32) / 4.0);
  c.options.mask = heed::causal().window(1, 0).always_visible(2);
  c.run();
  CHECK(c.out(0, 0, 0, 0) == 1.0);
}

TEST_CASE("reference softmax: packed pieces, empty ones among them") {
  auto c = small_call::random(3, 1, 2, 8, 1, 1, 3, 2);
  const std::vector<std::int32_t> cu_q{0, 0, 1, 1, 2}, cu_k{0, 0, 3, 3, 8};
  c.options.mask = heed::causal().packed(cu_q, cu_k);
  c.run();
  for (const index n : {0, 1}) {
    const index keys = n == 0 ? 3 : 5, first = n == 0 ? 0 : 3;
    small_call one(1, 1, keys, 1, 1, 3, 2);
    for (index x = 0; x < 3; ++x) one.q(0, 0, 0, x) = c.q(0, n, 0, x);
    for (index j = 0; j < keys; ++j) {
      for (index x = 0; x < 3; ++x) one.k(0, j, 0, x) = c.k(0, first + j, 0, x);
      for (index x = 0; x < 2; ++x) one.v(0, j, 0, x) = c.v(0, first + j, 0, x);
    }
    one.options.mask = heed::causal();
    one.run();
    for (index x = 0; x < 2; ++x) CHECK(c.out(0, n, 0, x) == one.out(0, 0, 0, x));
  }
  // A piece with a query and no keys.
  const std::vector<std::int32_t> all_k{0, 0, 0, 3, 8};
  c.options.mask = heed::causal().packed(cu_q, all_k);
  c.run();
  CHECK(c.out(0, 0, 0, 0) == 0);
  CHECK(c.lse(0, 0, 0, 0) == -infinity);

  small_call none(2, 3, 0, 2, 1, 3, 2);
  none.run();
  CHECK(none.out.elements == std::vector<double>(2 * 3 * 2 * 2, 0.0));
}

TEST_CASE("reference softmax: query heads share key heads in order") {
  auto c = small_call::random(4, 1, 3, 3, 6, 2, 2, 2);
  auto wide = small_call::random(4, 1, 3, 3, 6, 6, 2, 2);
  wide.q.elements = c.q.elements;
  for (index j = 0; j < 3; ++j)
    for (index h = 0; h < 6; ++h)
      for (index x = 0; x < 2; ++x) {
        wide.k(0, j, h, x) = c.k(0, j, h / 3, x);
        wide.v(0, j, h, x) = c.v(0, j, h / 3, x);
      }
  CHECK(c.run().out.elements == wide.run().out.elements);
}

}  // namespace heed_test
