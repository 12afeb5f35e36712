// Counting gates and reading tables at the counts, against sums in double.
#include "heed/kernel/positions.hpp"

#include <cmath>
#include <limits>

#include "catch.hpp"
#include "random_problem.hpp"

using namespace heed_test;
using namespace heed::kernel;

namespace {

template <class T>
constexpr T infinity = std::numeric_limits<T>::infinity();

// One row: a table z and what it has counted.
template <class T>
struct row {
  using table_type = position_table<T, default_arch>;

  heed::index n;
  std::vector<T> table;
  gate_count<T, default_arch> count;

  explicit row(const std::vector<T>& z)
      : n(static_cast<heed::index>(z.size())),
        table(static_cast<std::size_t>(2 * table_type::size(n))) {
    std::copy(z.begin(), z.end(), table.begin());
    table_type::complete(table.data(), n);
  }
  // Adds the table at the positions of the newest logits to zeros.
  std::vector<T> positions(const std::vector<T>& gate_logits) {
    const auto used = gate_logits.size();
    std::vector<T> gates(used + 16, std::numeric_limits<T>::quiet_NaN()), x(used + 16);
    std::copy(gate_logits.begin(), gate_logits.end(), gates.begin());
    add_positions<T, default_arch>(
        x.data(), gates.data(), static_cast<heed::index>(used),
        table_type{table.data(), table.data() + table_type::size(n), table_type::last_block_of(n)},
        n - 1, count);
    x.resize(used);
    return x;
  }
};

// z_p = p, so that a table gives back positions.
template <class T>
std::vector<T> ramp(heed::index n) {
  std::vector<T> z;
  for (heed::index p = 0; p < n; ++p) z.push_back(static_cast<T>(p));
  return z;
}

}  // namespace

TEMPLATE_TEST_CASE("gates are exact at 0 and where saturated", "", float, double) {
  using v = vec<TestType, default_arch>;
  const auto gate = [](TestType x) {
    v one[1] = {v(x)};
    gates_of(one);
    return first_lane(one[0]);
  };
  CHECK(gate(0) == TestType(0.5));
  CHECK(gate(-TestType(0)) == TestType(0.5));
  CHECK(gate(60) == 1);
  CHECK(gate(1e30f) == 1);
  CHECK(gate(infinity<TestType>) == 1);
  CHECK(gate(-infinity<TestType>) == 0);
  CHECK(gate(-1e30f) == 0);
  CHECK(gate(-1000) == 0);
  CHECK(gate(-60) <= TestType(1e-24));
  CHECK(std::isnan(gate(std::numeric_limits<TestType>::quiet_NaN())));
  double worst = 0;
  for (double x = -20; x < 20; x += 0.00371) {
    const double at = static_cast<double>(static_cast<TestType>(x));
    const double expected = 1 / (1 + std::exp(-at));
    worst = std::max(
        worst, std::abs(static_cast<double>(gate(static_cast<TestType>(x))) - expected) / expected);
  }
  CHECK(worst <= (sizeof(TestType) == 4 ? 2e-6 : 2e-15));
}

TEMPLATE_TEST_CASE("whole positions give the table's entries exactly", "", float, double) {
  // Gates of 0.5: position 0.5, 1, 1.5 ... from the newest column.
  random_source random(1);
  for (const heed::index n : {1, 2, 3, 16, 17, 33, 64, 100, 1000}) {
    std::vector<TestType> z;
    for (heed::index p = 0; p < n; ++p) z.push_back(static_cast<TestType>(random.normal()));
    for (const std::size_t columns : {1U, 2U, 15U, 16U, 64U, 67U, 128U, 200U, 2100U}) {
      row<TestType> r(z);
      const auto x = r.positions(std::vector<TestType>(columns));
      for (std::size_t back = 1; back <= columns; ++back) {
        const std::size_t whole = std::min(back / 2, z.size() - 1);
        const TestType found = x[columns - back];
        if (back % 2 == 0 || whole + 1 == z.size()) {
          if (found != z[whole]) FAIL("n " << n << ", column " << back << " from the newest");
        } else {
          const double middle = (static_cast<double>(z[whole]) + static_cast<double>(z[whole + 1]));
          if (std::abs(static_cast<double>(found) - middle / 2) > 1e-6) {
            FAIL("n " << n << ", column " << back << " from the newest");
          }
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("long counts keep their digits over many panels", "", float, double) {
  random_source random(2);
  for (const double typical : {-5.0, 0.0, 4.0}) {
    const heed::index n = 30000;
    row<TestType> r(ramp<TestType>(n));
    double counted = 0, worst = 0;
    for (heed::index panel = 0; panel < 200; ++panel) {
      const auto columns = static_cast<std::size_t>(random.integer(1, 150));
      std::vector<TestType> logits;
      for (std::size_t c = 0; c < columns; ++c) {
        logits.push_back(static_cast<TestType>(typical + random.normal()));
      }
      const auto x = r.positions(logits);
      for (std::size_t c = columns; c-- > 0;) {
        counted += 1 / (1 + std::exp(-static_cast<double>(logits[c])));
        worst = std::max(worst, std::abs(static_cast<double>(x[c]) - counted) / counted);
      }
    }
    CHECK(worst <= (sizeof(TestType) == 4 ? 1e-6 : 1e-14));
  }
}

TEMPLATE_TEST_CASE("a full count reads no more gates", "", float, double) {
  const auto nan = std::numeric_limits<TestType>::quiet_NaN();
  row<TestType> r(ramp<TestType>(5));
  std::vector<TestType> open(7, TestType(100));
  CHECK(r.positions(open) == std::vector<TestType>{4, 4, 4, 4, 3, 2, 1});
  CHECK(r.positions({nan, nan, nan}) == std::vector<TestType>{4, 4, 4});
  row<TestType> one(ramp<TestType>(1));
  CHECK(one.positions({nan, nan, 1}) == std::vector<TestType>{0, 0, 0});
}

TEMPLATE_TEST_CASE("hidden columns count nothing, NaN spoils what is older only", "", float,
                   double) {
  const auto nan = std::numeric_limits<TestType>::quiet_NaN();
  const TestType hidden = -infinity<TestType>;
  row<TestType> r(ramp<TestType>(40));
  CHECK(r.positions({hidden, 100, hidden, hidden, 100, hidden}) ==
        std::vector<TestType>{2, 2, 1, 1, 1, 0});
  const auto x = r.positions({100, nan, 100, 100});
  CHECK((std::isnan(x[0]) && std::isnan(x[1]) && x[2] == 4 && x[3] == 3));
  CHECK(std::isnan(r.positions({100})[0]));
}
