// exp, sigmoid, tanh and log-sigmoid against long double.
#include "heed/kernel/math.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"

namespace {

namespace k = heed::kernel;
using arch = k::default_arch;

// A kernel function of vectors, applied to one number in every lane.
template <class T, class F>
T one(F f, T x) {
  T lanes[k::vec<T, arch>::size];
  f(k::vec<T, arch>(x)).store_unaligned(lanes);
  for (const T lane : lanes) {
    if (lane != lanes[0] && lane == lane) FAIL("lanes differ");
  }
  return lanes[0];
}

const auto vector_exp = [](auto x) { return k::exp<arch>(x); };
const auto vector_exp_negative = [](auto x) { return k::exp_negative<arch>(x); };
const auto vector_sigmoid = [](auto x) { return k::sigmoid<arch>(x); };
const auto vector_tanh = [](auto x) { return k::tanh<arch>(x); };
const auto vector_log_sigmoid = [](auto x) { return k::log_sigmoid<arch>(x); };

long double exact_sigmoid(long double x) {
  return 1 / (1 + std::exp(-x));
}
long double exact_log_sigmoid(long double x) {
  return x > 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
}

// Largest relative error over [from, to], in units of the rounding error, on an even grid, random
// points, and powers of two of both signs.
template <class T, class F, class G>
double worst_error(F f, G exact, double from, double to) {
  std::vector<T> points;
  const int steps = 40000;
  for (int i = 0; i <= steps; ++i) points.push_back(static_cast<T>(from + (to - from) * i / steps));
  std::mt19937 engine(7);
  std::uniform_real_distribution<double> uniform(from, to);
  for (int i = 0; i < steps; ++i) points.push_back(static_cast<T>(uniform(engine)));
  for (double size = 1e-30; size < 1e3; size *= 1.37) {
    if (size < to) points.push_back(static_cast<T>(size));
    if (-size > from) points.push_back(static_cast<T>(-size));
  }
  double worst = 0;
  for (const T x : points) {
    const long double expected = exact(static_cast<long double>(x));
    if (expected == 0) continue;
    const long double error = (static_cast<long double>(one<T>(f, x)) - expected) / expected;
    worst = std::max(worst, static_cast<double>(std::abs(error)));
  }
  return worst / (std::numeric_limits<T>::epsilon() / 2);
}

const auto exact_exp = [](long double x) { return std::exp(x); };
const auto exact_tanh = [](long double x) { return std::tanh(x); };

}  // namespace

TEMPLATE_TEST_CASE("multiply_add rounds once where has_fma says so", "[kernel][math]", float,
                   double) {
  using T = TestType;
  // (1 + e)(1 - e) - 1 = -e^2; the product alone rounds to 1.
  const T e = std::numeric_limits<T>::epsilon();
  volatile T above = 1 + e, below = 1 - e;
  using v = k::vec<T, arch>;
  const T found = one([&](v x) { return k::multiply_add(x, v(T(below)), v(T(-1))); }, T(above));
  CHECK(found == (k::has_fma<arch> ? -e * e : T(0)));
}

TEMPLATE_TEST_CASE("exp to two roundings", "[kernel][math]", float, double) {
  constexpr bool single = sizeof(TestType) == 4;
  CHECK(worst_error<TestType>(vector_exp, exact_exp, single ? -87 : -708, single ? 88.7 : 709.7) <
        2);
  CHECK(worst_error<TestType>(vector_exp_negative, exact_exp, single ? -87 : -708, 0) < 2);
}

TEMPLATE_TEST_CASE("exp at the edges", "[kernel][math]", float, double) {
  using limits = std::numeric_limits<TestType>;
  constexpr TestType infinity = limits::infinity();
  for (const TestType zero : {TestType(0), TestType(-0.0)}) {
    CHECK(one(vector_exp, zero) == 1);
    CHECK(one(vector_exp_negative, zero) == 1);
  }
  CHECK(one(vector_exp, infinity) == infinity);
  CHECK(one(vector_exp, TestType(1e30)) == infinity);
  CHECK(one(vector_exp, -infinity) == 0);
  CHECK(one(vector_exp, TestType(-1e30)) == 0);
  CHECK(one(vector_exp_negative, -infinity) == 0);
  CHECK(one(vector_exp_negative, limits::lowest()) == 0);
  CHECK(std::isnan(one(vector_exp, limits::quiet_NaN())));
  CHECK(std::isnan(one(vector_exp_negative, limits::quiet_NaN())));
  CHECK(one(vector_exp, limits::denorm_min()) == 1);
  // 0 only where the true value is below 1e-38, or in double below the normal numbers.
  const TestType last = sizeof(TestType) == 4 ? TestType(-87.49) : TestType(-708.3);
  CHECK(one(vector_exp_negative, last) > 0);
  CHECK(one(vector_exp, last) > 0);
}

TEMPLATE_TEST_CASE("sigmoid to four roundings, exact where it must be", "[kernel][math]", float,
                   double) {
  using limits = std::numeric_limits<TestType>;
  CHECK(worst_error<TestType>(vector_sigmoid, exact_sigmoid, -87, 60) < 4);
  CHECK(one(vector_sigmoid, TestType(0)) == TestType(0.5));
  CHECK(one(vector_sigmoid, TestType(-0.0)) == TestType(0.5));
  CHECK(one(vector_sigmoid, TestType(55)) == 1);
  CHECK(one(vector_sigmoid, limits::infinity()) == 1);
  CHECK(one(vector_sigmoid, -limits::infinity()) == 0);
  CHECK(one(vector_sigmoid, limits::max()) == 1);
  CHECK(one(vector_sigmoid, limits::lowest()) == 0);
  CHECK(std::isnan(one(vector_sigmoid, limits::quiet_NaN())));
}

TEMPLATE_TEST_CASE("tanh to four roundings, odd and bounded", "[kernel][math]", float, double) {
  using limits = std::numeric_limits<TestType>;
  CHECK(worst_error<TestType>(vector_tanh, exact_tanh, -25, 25) < 4);
  CHECK(worst_error<TestType>(vector_tanh, exact_tanh, -1, 1) < 4);
  CHECK(one(vector_tanh, TestType(0)) == 0);
  CHECK(one(vector_tanh, TestType(100)) == 1);
  CHECK(one(vector_tanh, limits::infinity()) == 1);
  CHECK(one(vector_tanh, -limits::infinity()) == -1);
  CHECK(std::isnan(one(vector_tanh, limits::quiet_NaN())));
  for (double x = 1e-6; x < 30; x *= 1.7) {
    const TestType t = static_cast<TestType>(x);
    CHECK(one(vector_tanh, TestType(-t)) == -one(vector_tanh, t));
  }
}

TEMPLATE_TEST_CASE("log_sigmoid to four roundings", "[kernel][math]", float, double) {
  using limits = std::numeric_limits<TestType>;
  CHECK(worst_error<TestType>(vector_log_sigmoid, exact_log_sigmoid, -1000, 87) < 4);
  CHECK(one(vector_log_sigmoid, -limits::infinity()) == -limits::infinity());
  CHECK(one(vector_log_sigmoid, limits::infinity()) == 0);
  CHECK(std::isnan(one(vector_log_sigmoid, limits::quiet_NaN())));
}
