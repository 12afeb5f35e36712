#include "heed/reference/mta.hpp"

#include <cmath>

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {
namespace {

// A kernel [H, cq, ck] with a 1 at [a, b] for every head.
struct one_hot {
  one_hot(index H, index cq, index ck, index a, index b)
      : extents{H, cq, ck}, values(static_cast<std::size_t>(H * cq * ck)) {
    for (index h = 0; h < H; ++h) values[static_cast<std::size_t>((h * cq + a) * ck + b)] = 1;
  }
  heed::tensor_view<const double, 3> view() const { return {values, extents}; }
  heed::shape<3> extents;
  std::vector<double> values;
};

// L_ij = x_ij for one head: q_i is unit vector i, k_j column j of x.
small_call call_with_logits(const std::vector<std::vector<double>>& x) {
  const auto T = static_cast<index>(x.size()), S = static_cast<index>(x[0].size());
  small_call c(1, T, S, 1, 1, T, S);
  c.options.scale = 1;
  for (index i = 0; i < T; ++i) {
    c.q(0, i, 0, i) = 1;
    for (index j = 0; j < S; ++j) {
      c.k(0, j, 0, i) = x[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
    }
  }
  for (index j = 0; j < S; ++j) c.v(0, j, 0, j) = 1;  // out is P
  return c;
}

}  // namespace

TEST_CASE("reference mta: golden cases") {
  check_golden("mta_");
}

TEST_CASE("reference mta: the future is 0 before the convolution") {
  const one_hot kernel(1, 2, 3, 0, 2);  // reads [i - 1, j + 1]
  std::vector<double> all{.1, .2, .3, .4, .5, .6};
  const heed::tensor_view<const double, 3> full(all, {1, 2, 3});
  for (const auto& view : {kernel.view(), full}) {
    std::vector<std::vector<double>> x{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
    auto calm = call_with_logits(x);
    calm.options.mask = heed::causal();
    calm.run(heed::conv{view});
    for (const double future : {1e9, nan_value, infinity}) {
      auto wild = call_with_logits(x);
      // A bias puts the number at [0, 1] and [1, 2] alone, beyond what the rows see.
      const std::vector<double> add{0, future, 0, 0, 0, future, 0, 0, 0};
      wild.options.mask = heed::causal();
      wild.run(heed::bias{heed::tensor_view<const double, 4>(add, {1, 1, 3, 3})}, heed::conv{view});
      CHECK(calm.out.elements == wild.out.elements);
    }
  }
}

TEST_CASE("reference mta: orientation of the kernel") {
  const std::vector<std::vector<double>> x{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  auto plain = call_with_logits(x);
  auto same = call_with_logits(x);
  plain.run();
  same.run(heed::conv{one_hot(1, 6, 11, 5, 5).view()});
  CHECK(plain.out.elements == same.out.elements);
  same.run(heed::conv{one_hot(1, 2, 4, 1, 3).view(), heed::conv_keys::left});
  CHECK(plain.out.elements == same.out.elements);
  same.run(heed::conv{one_hot(1, 2, 4, 1, 0).view(), heed::conv_keys::right});
  CHECK(plain.out.elements == same.out.elements);

  // One earlier query, one later key.
  auto moved = call_with_logits(x);
  auto expected = call_with_logits({{0, 0, 0}, {2, 3, 0}, {5, 6, 0}});
  moved.run(heed::conv{one_hot(1, 2, 3, 0, 2).view()});
  CHECK(moved.out.elements == expected.run().out.elements);
}

TEST_CASE("reference mta: rows above the start are 0 after softmax, nothing is normalised") {
  auto c = call_with_logits({{0, 0, 0}, {0, 0, 0}, {0, 0, 0}});
  const std::vector<double> ones(6 * 3, 1.0);
  c.options.mask = heed::causal();
  c.run(heed::after{heed::conv{heed::tensor_view<const double, 3>(ones, {1, 6, 3})}});
  // P = [1], [1/2 1/2], [1/3 1/3 1/3]; each entry sums its neighbours in all rows up to its own.
  const double third = 1.0 / 3;
  const double expected[3][3] = {{1, 0, 0}, {2, 2, 0}, {2 + 2 * third, 3, 0.5 + 2 * third}};
  for (index i = 0; i < 3; ++i)
    for (index j = 0; j < 3; ++j) {
      CHECK(c.out(0, i, 0, j) == Catch::Approx(expected[i][j]).margin(1e-15));
    }
}

TEST_CASE("reference mta: a visible -inf reads as 0 in stages that mix") {
  auto c = call_with_logits({{5, 7, 9}});
  const std::vector<double> add{0, -infinity, 0}, sum{1, 1, 1};
  const heed::tensor_view<const double, 4> low(add, {1, 1, 1, 3});
  c.run(heed::bias{low}, heed::conv{heed::tensor_view<const double, 3>(sum, {1, 1, 3})});
  auto expected = call_with_logits({{5, 14, 9}});
  CHECK(c.out.elements == expected.run().out.elements);
  c.run(heed::conv{heed::tensor_view<const double, 3>(sum, {1, 1, 3})}, heed::bias{low});
  CHECK(c.out(0, 0, 0, 1) == 0);
}

TEST_CASE("reference mta: head mixes, [out][in] for all heads, [in][out] within groups") {
  // Values are one-hot per head, so out shows which head's probabilities arrived.
  small_call c(1, 1, 1, 4, 4, 1, 1);
  c.v.fill(1);
  std::vector<double> m(16);
  for (std::size_t n = 0; n < 16; ++n) m[n] = static_cast<double>(n + 1);
  c.run(heed::after{heed::head_mix{heed::tensor_view<const double, 2>(m, {4, 4})}});
  CHECK(c.out.elements == std::vector<double>{10, 26, 42, 58});  // row sums
  c.run(heed::after{heed::group_mix{heed::tensor_view<const double, 3>({m.data(), 8}, {2, 2, 2})}});
  CHECK(c.out.elements == std::vector<double>{4, 6, 12, 14});  // column sums of each group

  // Before softmax: logits 1, 2, 3, 4 times the asymmetric rows.
  auto mixed = small_call::random(6, 1, 3, 3, 4, 4, 2, 2);
  auto once = small_call::random(6, 1, 3, 3, 4, 4, 2, 2);
  const std::vector<double> swap{0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0};
  mixed.run(heed::head_mix{heed::tensor_view<const double, 2>(swap, {4, 4})});
  for (index i = 0; i < 3; ++i)
    for (index h = 0; h < 4; ++h) {
      once.run();
      CHECK(mixed.lse(0, 0, i, h) == once.lse(0, 0, i, (h + 1) % 4));
    }
}

TEST_CASE("reference mta: the kernel over heads is conv per head where its cross terms are 0") {
  auto three = small_call::random(7, 1, 6, 6, 4, 2, 3, 2);
  auto two = small_call::random(7, 1, 6, 6, 4, 2, 3, 2);
  three.options.mask = two.options.mask = heed::causal();
  const std::vector<double> k = normals(8, 4 * 2 * 3);
  std::vector<double> wide(4 * 2 * 2 * 3);
  for (std::size_t h = 0; h < 4; ++h)
    for (std::size_t n = 0; n < 6; ++n) wide[(h * 2 + h % 2) * 6 + n] = k[h * 6 + n];
  three.run(heed::conv3{heed::tensor_view<const double, 4>(wide, {4, 2, 2, 3})});
  two.run(heed::conv{heed::tensor_view<const double, 3>(k, {4, 2, 3})});
  CHECK(close(three.out, two.out));

  // All heads of a group the same, 1x1: the sum of the group, as a group mix of ones.
  const std::vector<double> ones(4 * 2, 1.0);
  three.run(heed::conv3{heed::tensor_view<const double, 4>(ones, {4, 2, 1, 1})});
  two.run(heed::group_mix{heed::tensor_view<const double, 3>(ones, {2, 2, 2})});
  CHECK(close(three.out, two.out));
}

TEST_CASE("reference mta: kernels do not reach across the pieces of a packed batch") {
  auto all = small_call::random(9, 1, 7, 7, 2, 2, 3, 2);
  auto first = small_call::random(9, 1, 3, 3, 2, 2, 3, 2);
  const std::vector<double> k = normals(10, 2 * 3 * 5);
  const heed::conv m{heed::tensor_view<const double, 3>(k, {2, 3, 5})};
  const std::vector<std::int32_t> cu{0, 3, 7};
  for (auto member : {&small_call::q, &small_call::k, &small_call::v}) {
    auto& from = (all.*member).elements;
    auto& to = (first.*member).elements;
    std::copy_n(from.begin(), to.size(), to.begin());
    for (std::size_t n = to.size(); n < from.size(); ++n) from[n] = nan_value;
  }
  all.options.mask = heed::causal().packed(cu, cu);
  first.options.mask = heed::causal();
  all.run(m, heed::after{m});
  first.run(m, heed::after{m});
  for (std::size_t n = 0; n < first.out.elements.size(); ++n) {
    CHECK(all.out.elements[n] == first.out.elements[n]);
  }
}

TEST_CASE("reference mta: mta stands for its stages") {
  auto sugar = small_call::random(11, 1, 5, 5, 2, 1, 3, 2);
  auto stages = small_call::random(11, 1, 5, 5, 2, 1, 3, 2);
  sugar.options.mask = stages.options.mask = heed::causal();
  const std::vector<double> k = normals(12, 2 * 2 * 3), heads = normals(13, 4);
  const heed::tensor_view<const double, 3> kernel(k, {2, 2, 3}), mix(heads, {1, 2, 2});
  const std::vector<double> weight{1, 2};
  const heed::head_norm norm{heed::tensor_view<const double, 1>(weight, {2})};
  stages.run(heed::conv{kernel}, heed::after{heed::group_mix{mix}});
  CHECK(sugar.run(heed::mta{kernel, mix}).out.elements == stages.out.elements);
  stages.run(heed::conv{kernel}, heed::after{heed::group_mix{mix}}, norm);
  sugar.run(heed::mta{heed::conv{kernel}, heed::after{heed::group_mix{mix}}, norm});
  CHECK(sugar.out.elements == stages.out.elements);
}

TEST_CASE("reference mta: refuses kernels that do not fit") {
  small_call c(1, 2, 2, 4, 2, 1, 3);
  const std::vector<double> x(100);
  const auto view3 = [&](index a, index b, index d) {
    return heed::tensor_view<const double, 3>(x, {a, b, d});
  };
  CHECK_THROWS_AS(c.run(heed::conv{view3(3, 1, 1)}), heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::conv{view3(4, 2, 4)}), heed::shape_error);
  CHECK_NOTHROW(c.run(heed::conv{view3(4, 2, 4), heed::conv_keys::left}));
  CHECK_THROWS_AS(c.run(heed::conv{view3(4, 0, 1)}), heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::group_mix{view3(2, 3, 3)}), heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::group_mix{view3(2, 2, 3)}), heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::after{heed::group_mix{view3(1, 2, 2)}}), heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::conv3{heed::tensor_view<const double, 4>(x, {4, 3, 1, 1})}),
                  heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::head_norm{heed::tensor_view<const double, 1>(x, {2})}),
                  heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::head_gate{heed::tensor_view<const double, 2>(x, {2, 3}),
                                        heed::tensor_view<const double, 1>(x, {2})}),
                  heed::shape_error);
}

}  // namespace heed_test
