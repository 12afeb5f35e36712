#include "heed/reference/bias.hpp"

#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference bias: axes of extent 1 repeat") {
  const index B = 2, T = 3, H = 2, S = 43;
  for (int ones = 0; ones < 16; ++ones) {
    const heed::shape<4> extents{ones & 1 ? 1 : B, ones & 2 ? 1 : H, ones & 4 ? 1 : T,
                                 ones & 8 ? 1 : S};
    const auto values = normals(9, extents[0] * extents[1] * extents[2] * extents[3]);
    const heed::tensor_view<const double, 4> view(values, extents);
    std::vector<double> written;
    for (index b = 0; b < B; ++b)
      for (index h = 0; h < H; ++h)
        for (index i = 0; i < T; ++i)
          for (index j = 0; j < S; ++j) {
            written.push_back(
                view(ones & 1 ? 0 : b, ones & 2 ? 0 : h, ones & 4 ? 0 : i, ones & 8 ? 0 : j));
          }
    auto narrow = small_call::random(8, B, T, S, H, 1, 3, 2);
    auto wide = small_call::random(8, B, T, S, H, 1, 3, 2);
    narrow.run(heed::bias{view});
    wide.run(heed::bias{heed::tensor_view<const double, 4>(written, {B, H, T, S})});
    CHECK(narrow.out.elements == wide.out.elements);
    CHECK(narrow.lse.elements == wide.lse.elements);
  }
}

TEST_CASE("reference bias: -inf hides, a row of nothing else is empty") {
  auto hidden = small_call::random(7, 1, 2, 3, 1, 1, 2, 2);
  auto biased = small_call::random(7, 1, 2, 3, 1, 1, 2, 2);
  const bool shown[] = {true, false, true, false, false, false};
  const double low[] = {0, -infinity, 0, -infinity, -infinity, -infinity};
  hidden.options.mask = heed::full().visible(heed::tensor_view<const bool, 4>(shown, {1, 1, 2, 3}));
  hidden.run();
  biased.run(heed::bias{heed::tensor_view<const double, 4>(low, {1, 1, 2, 3})});
  CHECK(hidden.out.elements == biased.out.elements);
  CHECK(hidden.lse.elements == biased.lse.elements);
  CHECK(biased.lse(0, 0, 1, 0) == -infinity);
  // It stays empty where a convolution after the softmax would carry weights of row 0 into it, and
  // its values are not multiplied by 0.
  const std::vector<double> ones(2, 1.0);
  const heed::after carry{heed::conv{heed::tensor_view<const double, 3>(ones, {1, 2, 1})}};
  biased.v(0, 1, 0, 0) = nan_value;
  biased.run(heed::bias{heed::tensor_view<const double, 4>(low, {1, 1, 2, 3})}, carry);
  CHECK(biased.out(0, 1, 0, 0) == 0);
  CHECK(biased.out(0, 1, 0, 1) == 0);
}

TEST_CASE("reference bias: indices are absolute in a packed batch") {
  small_call c(1, 4, 4, 1, 1, 1, 1);
  const std::vector<std::int64_t> cu{0, 1, 4};
  std::vector<double> values(16, nan_value);  // never read across pieces
  values[0] = 0;
  for (index i = 1; i < 4; ++i)
    for (index j = 1; j < 4; ++j) {
      values[static_cast<std::size_t>(i * 4 + j)] = j == 4 - i ? 0.0 : -infinity;
    }
  c.v.elements = {1, 2, 3, 4};
  c.options.mask = heed::full().packed(cu, cu);
  c.run(heed::bias{heed::tensor_view<const double, 4>(values, {1, 1, 4, 4})});
  CHECK(c.out.elements == std::vector<double>{1, 4, 3, 2});
}

TEST_CASE("reference bias: names the axis that does not fit") {
  small_call c(2, 3, 4, 1, 1, 1, 1);
  const std::vector<double> values(10);
  CHECK_THROWS_WITH(c.run(heed::bias{heed::tensor_view<const double, 4>(values, {1, 1, 2, 4})}),
                    "heed: bias: values: axis 2 (queries) is 2, expected 1 or 3");
}

}  // namespace heed_test
