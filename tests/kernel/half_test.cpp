#include "heed/kernel/half.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"
#include "guarded.hpp"

namespace heed_test {

using heed::bfloat16;
using heed::float16;
using heed::index;

namespace {

// The formats from their definition, in arithmetic of double: fraction and exponent bits.
struct format {
  int exponent, fraction;
  int bias() const { return (1 << (exponent - 1)) - 1; }
  unsigned infinity() const { return ((1u << exponent) - 1) << fraction; }
};
constexpr format format_of(bfloat16) {
  return {8, 7};
}
constexpr format format_of(float16) {
  return {5, 10};
}

double value_of(format f, std::uint16_t pattern) {
  const unsigned size = pattern & 0x7fffu;
  const int exponent = static_cast<int>(size >> f.fraction);
  const int fraction = static_cast<int>(size & ((1u << f.fraction) - 1));
  double value = exponent == 0
                     ? std::ldexp(fraction, 1 - f.bias() - f.fraction)
                     : std::ldexp(fraction + (1 << f.fraction), exponent - f.bias() - f.fraction);
  if (size == f.infinity()) value = std::numeric_limits<double>::infinity();
  if (size > f.infinity()) value = std::numeric_limits<double>::quiet_NaN();
  return pattern & 0x8000u ? -value : value;
}

// The nearest pattern of a number that is not NaN, ties to even: the patterns from 0 to infinity
// are in order, and infinity stands where the next number would.
std::uint16_t nearest(format f, double value) {
  const double size = std::fabs(value);
  unsigned low = 0, high = f.infinity();
  const auto at = [&](unsigned pattern) {
    return pattern == f.infinity() ? std::ldexp(1.0, f.bias() + 1)
                                   : value_of(f, static_cast<std::uint16_t>(pattern));
  };
  while (high - low > 1) (at((low + high) / 2) <= size ? low : high) = (low + high) / 2;
  if (size >= at(f.infinity())) low = f.infinity() - 1;
  const double below = size - at(low), above = at(high) - size;
  const bool up = below > above || (below == above && low % 2 == 1);
  return static_cast<std::uint16_t>((up ? high : low) | (std::signbit(value) ? 0x8000u : 0u));
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

template <class H>
std::vector<float> interesting_floats() {
  std::vector<float> values;
  const format f = format_of(H{});
  for (unsigned n = 0; n <= 0xffff; ++n) {
    const auto pattern = static_cast<std::uint16_t>(n);
    const double here = value_of(f, pattern);
    if (!std::isfinite(here)) continue;
    const unsigned next_size = (n & 0x7fffu) + 1;
    double next = value_of(f, static_cast<std::uint16_t>((n & 0x8000u) | next_size));
    if (next_size == f.infinity()) next = std::copysign(std::ldexp(1.0, f.bias() + 1), here);
    const auto tie = static_cast<float>((here + next) / 2);
    for (const float v : {static_cast<float>(here), tie, std::nextafterf(tie, 0.0f),
                          std::nextafterf(tie, 2 * tie)}) {
      values.push_back(v);
    }
  }
  std::mt19937 random(7);
  for (int n = 0; n < 100000; ++n) values.push_back(std::bit_cast<float>(std::uint32_t(random())));
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float v : {infinity, std::numeric_limits<float>::max(), 1e-45f, 1e-38f}) {
    values.push_back(v);
    values.push_back(-v);
  }
  return values;
}

}  // namespace

TEMPLATE_TEST_CASE("every half is read exactly, and comes back", "[half]", bfloat16, float16) {
  const format f = format_of(TestType{});
  std::size_t wrong = 0;
  std::vector<TestType> halves;
  for (unsigned n = 0; n <= 0xffff; ++n) {
    halves.push_back(TestType::from_bits(static_cast<std::uint16_t>(n)));
    const double expected = value_of(f, halves.back().bits());
    const auto value = static_cast<float>(halves.back());
    if (std::isnan(expected)) {
      const unsigned quiet = n | (1u << (f.fraction - 1));
      const auto bits = std::bit_cast<std::uint32_t>(value);
      wrong += !std::isnan(value) || (bits >> 16 & 0x8000u) != (n & 0x8000u);
      wrong += TestType(value).bits() != quiet;
    } else {
      wrong += !same(value, static_cast<float>(expected)) || TestType(value).bits() != n;
      wrong += static_cast<double>(halves.back()) != expected;
    }
  }
  CHECK(wrong == 0);

  std::vector<float> wide(halves.size());
  heed::kernel::widen(halves.data(), wide.data(), static_cast<index>(wide.size()));
  for (std::size_t n = 0; n < wide.size(); ++n)
    wrong += !same(wide[n], static_cast<float>(halves[n]));
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("floats are rounded to the nearest half, ties to even", "[half]", bfloat16,
                   float16) {
  const format f = format_of(TestType{});
  const std::vector<float> values = interesting_floats<TestType>();
  std::vector<TestType> narrow(values.size());
  heed::kernel::narrow(values.data(), narrow.data(), static_cast<index>(values.size()));
  std::size_t wrong = 0, nans = 0, vectors = 0;
  for (std::size_t n = 0; n < values.size(); ++n) {
    const std::uint16_t bits = TestType(values[n]).bits();
    vectors += bits != narrow[n].bits();
    if (std::isnan(values[n])) {
      ++nans;
      wrong += !std::isnan(value_of(f, bits)) || (bits >> (f.fraction - 1) & 1u) == 0 ||
               ((bits & 0x8000u) != 0) != std::signbit(values[n]);
    } else {
      wrong += bits != nearest(f, static_cast<double>(values[n]));
    }
  }
  CHECK(wrong == 0);
  CHECK(vectors == 0);
  CHECK(nans > 100);
}

TEMPLATE_TEST_CASE("doubles are rounded once", "[half]", bfloat16, float16) {
  const format f = format_of(TestType{});
  std::size_t wrong = 0, once_more = 0;
  for (const float value : interesting_floats<TestType>()) {
    if (std::isnan(value)) continue;
    for (const double part : {-0x1p-40, 0.0, 0x1p-40}) {  // a tie no longer, but not for a float
      const double exact = static_cast<double>(value) * (1 + part);
      const std::uint16_t expected = nearest(f, exact);
      wrong += TestType(exact).bits() != expected;
      once_more += TestType(static_cast<float>(exact)).bits() != expected;
    }
  }
  CHECK(wrong == 0);
  CHECK(once_more > 1000);
  CHECK(TestType(1e300).bits() == f.infinity());
  CHECK(TestType(-1e300).bits() == (f.infinity() | 0x8000u));
  CHECK(TestType(1e-300).bits() == 0);
  CHECK(std::isnan(static_cast<double>(TestType(std::numeric_limits<double>::quiet_NaN()))));
}

TEMPLATE_TEST_CASE("runs of any length are converted to their last element and no further",
                   "[half]", bfloat16, float16) {
  std::mt19937 random(3);
  for (index n = 0; n <= 70; ++n) {
    INFO("n = " << n);
    // Halves lie at the end of a page, too: as pairs they fill a tensor of floats.
    guarded_tensor<float, 1> floats({n}), room({(n + 1) / 2});
    auto* const halves = reinterpret_cast<TestType*>(room.view().data()) + n % 2;
    floats.fill([&](index) { return std::bit_cast<float>(std::uint32_t(random())); });
    const std::vector<float> values(floats.view().data(), floats.view().data() + n);
    heed::kernel::narrow(values.data(), halves, n);
    std::size_t wrong = 0;
    for (index i = 0; i < n; ++i) {
      wrong += halves[i].bits() != TestType(values[static_cast<std::size_t>(i)]).bits();
    }
    heed::kernel::narrow(floats.read().data(), halves, n);
    heed::kernel::widen(halves, floats.view().data(), n);
    for (index i = 0; i < n; ++i) {
      wrong += !same(floats.view()(i), static_cast<float>(halves[i]));
    }
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("instructions made for halves give what integers give", "[half]", bfloat16,
                   float16) {
  using arch = heed::kernel::default_arch;
  constexpr index width = heed::kernel::width<float, arch>;
  std::mt19937 random(5);
  std::size_t wrong = 0;
  for (unsigned n = 0; n <= 0xffff; n += width) {
    TestType halves[width], narrow[2][width];
    float wide[2][width], values[width];
    for (index i = 0; i < width; ++i) {
      halves[i] = TestType::from_bits(static_cast<std::uint16_t>(n + static_cast<unsigned>(i)));
      // A float that rounds to about this half.
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(halves[i]));
      values[i] = std::bit_cast<float>(bits ^ std::uint32_t(random() >> 16));
    }
    heed::kernel::widen_lanes<arch>(halves).store_unaligned(wide[0]);
    heed::kernel::load_widened<arch>(halves).store_unaligned(wide[1]);
    const auto v = heed::kernel::load_vec<arch>(values);
    heed::kernel::narrow_lanes<arch>(v, narrow[0]);
    heed::kernel::store_narrowed<arch>(narrow[1], v);
    for (index i = 0; i < width; ++i) {
      wrong += !same(wide[0][i], wide[1][i]) || narrow[0][i].bits() != narrow[1][i].bits();
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("halves are constants, too", "[half]") {
  static_assert(bfloat16(1.0f).bits() == 0x3f80 && float16(1.0f).bits() == 0x3c00);
  static_assert(static_cast<float>(float16::from_bits(1)) == 0x1p-24f);
  static_assert(float16(65519.0).bits() == 0x7bff && float16(65520.0).bits() == 0x7c00);
  static_assert(!std::is_convertible_v<float, bfloat16> && !std::is_convertible_v<float16, float>);
  static_assert(std::is_trivially_default_constructible_v<bfloat16>);
  SUCCEED();
}

}  // namespace heed_test
