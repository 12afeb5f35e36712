#include "heed/reference/path.hpp"

#include <cmath>

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {
namespace {

using matrix = std::vector<std::vector<double>>;

matrix times(const matrix& a, const matrix& b) {
  matrix c(a.size(), std::vector<double>(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t l = 0; l < b.size(); ++l)
      for (std::size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][l] * b[l][j];
  return c;
}

// PaTH's parameters for one batch entry.
struct parameters {
  parameters(std::uint64_t seed, index tokens, index heads, index D)
      : S(tokens),
        Hkv(heads),
        size(D),
        w(normals(seed, S * Hkv * D)),
        beta(normals(seed + 1, S * Hkv)) {
    for (double& x : w) x /= std::sqrt(static_cast<double>(D));
    for (double& x : beta) x = 1 + std::tanh(x);
  }
  heed::path<double> value() const {
    return {heed::tensor_view<const double, 4>(w, {1, S, Hkv, size}),
            heed::tensor_view<const double, 3>(beta, {1, S, Hkv})};
  }
  // H_s of a key head, written out.
  matrix householder(index s, index kv) const {
    const auto at = static_cast<std::size_t>((s * Hkv + kv) * size);
    matrix h(static_cast<std::size_t>(size), std::vector<double>(static_cast<std::size_t>(size)));
    for (std::size_t a = 0; a < h.size(); ++a)
      for (std::size_t b = 0; b < h.size(); ++b) {
        h[a][b] =
            (a == b ? 1 : 0) - beta[at / static_cast<std::size_t>(size)] * w[at + a] * w[at + b];
      }
    return h;
  }
  index S, Hkv, size;
  std::vector<double> w, beta;
};

// The log-sum-exp of a row whose token is p, from explicit products of D x D matrices.
double explicit_lse(small_call& c, const parameters& m, index row, index p, index h, double scale) {
  const index group = c.q.extents[2] / c.k.extents[2], kv = h / group;
  double sum = 0;
  for (index j = 0; j <= p && j < m.S; ++j) {
    matrix x(1);
    for (index a = 0; a < m.size; ++a) x[0].push_back(c.q(0, row, h, a));
    for (index s = std::min(p, m.S - 1); s > j; --s) x = times(x, m.householder(s, kv));
    double product = 0;
    for (index a = 0; a < m.size; ++a) {
      product += x[0][static_cast<std::size_t>(a)] * c.k(0, j, kv, a);
    }
    sum += std::exp(scale * product);
  }
  return std::log(sum);
}

}  // namespace

TEST_CASE("reference path: golden cases") {
  check_golden("path_");
}

TEST_CASE("reference path: equals products of explicit D x D matrices") {
  for (const index T : {1, 7, 12, 15}) {
    auto c = small_call::random(1, 1, T, 12, 4, 2, 5, 3);
    const parameters m(2, 12, 2, 5);
    c.options.mask = heed::causal();
    if (T > 12) c.options.mask = heed::causal().top_left();  // rows beyond the keys
    c.options.scale = 0.3;
    c.run(m.value());
    for (index i = 0; i < T; ++i)
      for (index h = 0; h < 4; ++h) {
        const index p = T > 12 ? i : i + 12 - T;
        CHECK(c.lse(0, 0, i, h) == Catch::Approx(explicit_lse(c, m, i, p, h, 0.3)).epsilon(1e-13));
      }
  }
}

TEST_CASE("reference path: beta = 0 or w = 0 is softmax") {
  auto plain = small_call::random(3, 1, 9, 9, 2, 2, 4, 3);
  auto still = small_call::random(3, 1, 9, 9, 2, 2, 4, 3);
  plain.options.mask = still.options.mask = heed::causal();
  plain.run();
  parameters m(4, 9, 2, 4);
  m.beta.assign(m.beta.size(), 0.0);
  CHECK(still.run(m.value()).out.elements == plain.out.elements);
  m = parameters(4, 9, 2, 4);
  m.w.assign(m.w.size(), 0.0);
  CHECK(still.run(m.value()).out.elements == plain.out.elements);
}

TEST_CASE("reference path: hidden keys and tokens that no path crosses are not read") {
  auto clean = small_call::random(5, 1, 8, 8, 2, 1, 3, 2);
  auto dirty = small_call::random(5, 1, 8, 8, 2, 1, 3, 2);
  const parameters good(6, 8, 1, 3);
  parameters bad = good;
  for (const std::size_t s : {0U, 1U, 2U, 7U}) bad.w[s * 3] = bad.beta[s] = nan_value;
  for (const index j : {0, 1}) dirty.k(0, j, 0, 0) = dirty.v(0, j, 0, 1) = nan_value;
  const std::vector<std::int64_t> start{2};
  clean.options.mask = dirty.options.mask = heed::causal().key_starts(start);
  clean.run(good.value());
  dirty.run(bad.value());
  for (index i = 0; i < 7; ++i)
    for (index h = 0; h < 2; ++h)
      for (index x = 0; x < 2; ++x) CHECK(clean.out(0, i, h, x) == dirty.out(0, i, h, x));
}

TEST_CASE("reference path: a window hides keys, not the transformations between") {
  auto wide = small_call::random(7, 1, 10, 10, 1, 1, 4, 2);
  auto narrow = small_call::random(7, 1, 10, 10, 1, 1, 4, 2);
  const parameters m(8, 10, 1, 4);
  std::vector<double> low(100);
  for (std::size_t i = 0; i < 10; ++i)
    for (std::size_t j = 0; j < 10; ++j) low[i * 10 + j] = j + 3 < i ? -infinity : 0.0;
  wide.options.mask = heed::causal();
  narrow.options.mask = heed::window(3, 0);
  wide.run(m.value(), heed::bias{heed::tensor_view<const double, 4>(low, {1, 1, 10, 10})});
  narrow.run(m.value());
  CHECK(wide.out.elements == narrow.out.elements);
}

TEST_CASE("reference path: pieces of a packed batch start fresh") {
  auto c = small_call::random(9, 1, 7, 7, 1, 1, 3, 2);
  parameters m(10, 7, 1, 3);
  for (const std::size_t s : {0U, 3U}) m.w[s * 3] = m.beta[s] = nan_value;
  const std::vector<std::int32_t> cu{0, 3, 7};
  c.options.mask = heed::causal().packed(cu, cu);
  c.run(m.value());
  for (const double x : c.out.elements) CHECK(std::isfinite(x));
}

TEST_CASE("reference path: refuses masks that show newer keys, and a second one") {
  small_call c(1, 4, 4, 1, 1, 2, 1);
  const parameters m(11, 4, 1, 2);
  c.options.mask = heed::full();
  CHECK_THROWS_AS(c.run(m.value()), heed::shape_error);
  c.options.mask = heed::causal();
  CHECK_THROWS_AS(c.run(m.value(), m.value()), heed::shape_error);
  CHECK(std::isnan(c.out(0, 0, 0, 0)));
}

}  // namespace heed_test
