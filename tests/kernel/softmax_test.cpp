// The online softmax against sums in long double, and every special value.
#include "heed/kernel/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"

namespace {

namespace k = heed::kernel;
using arch = k::default_arch;

template <class T>
inline constexpr heed::index lanes = k::width<T, arch>;
template <class T>
inline constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T>
inline constexpr T nan_of = std::numeric_limits<T>::quiet_NaN();

// Rows that go through softmax_strip panel by panel, with a value of dv numbers a key.
template <class T>
struct rows_under_test {
  heed::index rows, dv = 3, ldo = 5;
  std::vector<T> max, sum, out;

  explicit rows_under_test(heed::index n)
      : rows(n),
        max(static_cast<std::size_t>(n), -infinity<T>),
        sum(static_cast<std::size_t>(n * lanes<T>)),
        out(static_cast<std::size_t>(n * ldo), T(9)) {
    for (heed::index r = 0; r < rows; ++r) {
      std::fill_n(out.begin() + r * ldo, dv, T(0));
    }
  }
  k::softmax_rows<T> state() { return {max.data(), sum.data(), out.data(), ldo, dv}; }
  T out_at(heed::index r, heed::index i) const {
    return out[static_cast<std::size_t>(r * ldo + i)];
  }

  T total(heed::index r) const {
    const auto first = sum.begin() + r * lanes<T>;
    return std::accumulate(first, first + lanes<T>, T(0));
  }
  // Divides a row by its sum; returns its log-sum-exp.
  T finish(heed::index r) {
    const T all = total(r);
    for (heed::index i = 0; i < dv && all != 0; ++i) {
      out[static_cast<std::size_t>(r * ldo + i)] /= all;
    }
    return max[static_cast<std::size_t>(r)] + std::log(all);
  }

  // x: [rows x cols]; v: [cols x dv]. Returns the probabilities as written.
  std::vector<T> panel(const std::vector<T>& x, const std::vector<T>& v, heed::index cols) {
    const heed::index ld = k::round_up(cols, lanes<T>) + 1;
    std::vector<T> p(static_cast<std::size_t>(rows * ld), nan_of<T>);
    for (heed::index r = 0; r < rows; ++r) {
      for (heed::index c = 0; c < cols; ++c) {
        p[static_cast<std::size_t>(r * ld + c)] = x[static_cast<std::size_t>(r * cols + c)];
      }
    }
    k::softmax_strip<arch>(p.data(), ld, rows, cols, state());
    std::vector<T> written;
    for (heed::index r = 0; r < rows; ++r) {
      for (heed::index c = 0; c < cols; ++c) {
        const T weight = p[static_cast<std::size_t>(r * ld + c)];
        written.push_back(weight);
        for (heed::index i = 0; i < dv; ++i) {
          out[static_cast<std::size_t>(r * ldo + i)] +=
              weight * v[static_cast<std::size_t>(c * dv + i)];
        }
      }
      for (heed::index c = cols; c < ld - 1; ++c)
        CHECK(p[static_cast<std::size_t>(r * ld + c)] == 0);
      CHECK(std::isnan(p[static_cast<std::size_t>(r * ld + ld - 1)]));  // not written
    }
    return written;
  }
};

// Panels of random logits, some invisible; scale sets their size, offset their level.
template <class T>
void compare_with_exact(heed::index rows, heed::index cols, int panels, double scale,
                        double offset) {
  std::mt19937 engine(static_cast<unsigned>(rows * 100 + cols));
  std::normal_distribution<double> normal;
  std::bernoulli_distribution hidden(0.2);
  rows_under_test<T> tested(rows);
  std::vector<T> all_x, all_v;
  for (int panel = 0; panel < panels; ++panel) {
    std::vector<T> x, v;
    for (heed::index i = 0; i < rows * cols; ++i) {
      x.push_back(hidden(engine) ? -infinity<T> : static_cast<T>(normal(engine) * scale + offset));
    }
    for (heed::index i = 0; i < cols * tested.dv; ++i) v.push_back(static_cast<T>(normal(engine)));
    tested.panel(x, v, cols);
    all_x.insert(all_x.end(), x.begin(), x.end());
    all_v.insert(all_v.end(), v.begin(), v.end());
  }
  const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (heed::index r = 0; r < rows; ++r) {
    const auto x = [&](int panel, heed::index c) {
      return static_cast<long double>(
          all_x[static_cast<std::size_t>((panel * rows + r) * cols + c)]);
    };
    long double top = -INFINITY, sum = 0;
    for (int panel = 0; panel < panels; ++panel) {
      for (heed::index c = 0; c < cols; ++c) top = std::max(top, x(panel, c));
    }
    std::vector<long double> out(static_cast<std::size_t>(tested.dv));
    for (int panel = 0; panel < panels && top > -INFINITY; ++panel) {
      for (heed::index c = 0; c < cols; ++c) {
        const long double p = std::exp(x(panel, c) - top);
        sum += p;
        for (heed::index i = 0; i < tested.dv; ++i) {
          out[static_cast<std::size_t>(i)] +=
              p * static_cast<long double>(
                      all_v[static_cast<std::size_t>((panel * cols + c) * tested.dv + i)]);
        }
      }
    }
    const T lse = tested.finish(r);
    if (top == -INFINITY) {
      CHECK(lse == -infinity<T>);
      CHECK(tested.out_at(r, 0) == 0);
      continue;
    }
    const double exact_lse = static_cast<double>(top + std::log(sum));
    CHECK(std::abs(static_cast<double>(lse) - exact_lse) <= 4 * unit * (1 + std::abs(exact_lse)));
    // x itself is only known to half a unit of its size.
    const double bound = 16 * unit * (1 + std::abs(static_cast<double>(top)) / 8);
    for (heed::index i = 0; i < tested.dv; ++i) {
      const double exact = static_cast<double>(out[static_cast<std::size_t>(i)] / sum);
      CHECK(std::abs(static_cast<double>(tested.out_at(r, i)) - exact) <= bound);
    }
    CHECK(tested.out_at(r, tested.dv) == T(9));  // beyond dv
  }
}

}  // namespace

TEMPLATE_TEST_CASE("softmax over panels of every width", "[kernel][softmax]", float, double) {
  for (heed::index cols = 1; cols <= 2 * lanes<TestType> + 3; ++cols) {
    compare_with_exact<TestType>(5, cols, 3, 2.0, 0.0);
  }
  for (const heed::index cols : {64, 71, 130}) compare_with_exact<TestType>(19, cols, 4, 3.0, 1.0);
}

TEMPLATE_TEST_CASE("softmax with maxima that keep rising, and at great levels", "[kernel][softmax]",
                   float, double) {
  compare_with_exact<TestType>(17, 23, 5, 30.0, 0.0);
  compare_with_exact<TestType>(17, 23, 5, 10.0, 500.0);
  compare_with_exact<TestType>(17, 23, 5, 10.0, -500.0);
  // Beyond whole octaves, and rows on both sides of that limit in one strip.
  compare_with_exact<TestType>(17, 23, 5, 3.0, 4e6);
  compare_with_exact<TestType>(17, 23, 5, 3.0, -4e6);
  compare_with_exact<TestType>(17, 23, 5, 1e6, 0.0);
}

TEMPLATE_TEST_CASE("a strip's exponentials", "[kernel][softmax]", float, double) {
  constexpr bool single = sizeof(TestType) == 4;
  rows_under_test<TestType> tested(1);
  tested.panel({TestType(0)}, std::vector<TestType>(3), 1);
  REQUIRE(tested.max[0] == 0);
  std::vector<TestType> x;
  for (double at = 5.5; at > (single ? -87 : -708); at -= 0.00731) x.push_back(TestType(at));
  const std::vector<TestType> kept = x;
  const auto p =
      tested.panel(x, std::vector<TestType>(x.size() * 3), static_cast<heed::index>(x.size()));
  REQUIRE(tested.max[0] == 0);
  const double unit = static_cast<double>(std::numeric_limits<TestType>::epsilon());
  double worst = 0, worst_small = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(kept[i]));
    const double error = static_cast<double>(std::abs(p[i] / exact - 1)) / unit;
    // Rounding x itself moves e^x by |x| / 2 units.
    worst = std::max(worst, error / (2 + 0.75 * std::abs(static_cast<double>(kept[i]))));
    if (std::abs(kept[i]) < 1) worst_small = std::max(worst_small, error);
  }
  CHECK(worst < 1);
  CHECK(worst_small < 2.5);
}

TEMPLATE_TEST_CASE("invisible entries weigh exactly nothing", "[kernel][softmax]", float, double) {
  using T = TestType;
  rows_under_test<T> tested(3);
  const std::vector<T> v(9 * 3, T(1));
  std::vector<T> x(27, -infinity<T>);
  x[10] = T(-3);
  x[17] = std::numeric_limits<T>::lowest();
  auto p = tested.panel(x, v, 9);
  for (std::size_t i = 0; i < p.size(); ++i) CHECK((p[i] == 0) == (i != 10));
  for (const heed::index row : {0, 2}) {
    CHECK(tested.max[static_cast<std::size_t>(row)] == -infinity<T>);
    CHECK(tested.total(row) == 0);
    CHECK(tested.out_at(row, 0) == 0);
  }
  p = tested.panel(std::vector<T>(27, -infinity<T>), v, 9);
  for (const T weight : p) CHECK(weight == 0);
  CHECK(tested.finish(0) == -infinity<T>);
  CHECK(tested.finish(1) == Catch::Approx(-3));
  CHECK(tested.out_at(0, 0) == 0);
  CHECK(tested.out_at(1, 0) == Catch::Approx(1));
}

TEMPLATE_TEST_CASE("a NaN or +inf logit makes its row NaN, and only its row", "[kernel][softmax]",
                   float, double) {
  using T = TestType;
  const heed::index cols = 2 * lanes<T> + 5;
  const std::vector<T> v(static_cast<std::size_t>(cols * 3), T(1));
  for (const T bad : {nan_of<T>, -nan_of<T>, infinity<T>}) {
    for (heed::index place = 0; place < cols; ++place) {
      for (const int when : {0, 1, 2}) {  // which panel
        for (const bool alone : {false, true}) {
          rows_under_test<T> tested(3);
          for (int panel = 0; panel < 3; ++panel) {
            std::vector<T> x(static_cast<std::size_t>(3 * cols), T(panel));
            for (heed::index c = 0; c < cols && alone; ++c) {
              x[static_cast<std::size_t>(cols + c)] = -infinity<T>;
            }
            if (panel == when) x[static_cast<std::size_t>(cols + place)] = bad;
            tested.panel(x, v, cols);
          }
          const bool poisoned = std::isnan(tested.finish(1)) && std::isnan(tested.out_at(1, 0)) &&
                                std::isnan(tested.out_at(1, 2));
          if (!poisoned) FAIL("place " << place << " panel " << when << " alone " << alone);
          for (const heed::index row : {0, 2}) {
            const T lse = tested.finish(row);
            if (!(lse > 2) || !(std::abs(tested.out_at(row, 1) - 1) < T(1e-5))) FAIL("row " << row);
          }
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("exp_strip with final maxima", "[kernel][softmax]", float, double) {
  using T = TestType;
  const double ln2 = std::log(2.0);
  const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (const heed::index cols : {lanes<T> + 3, 6 * lanes<T>, 7 * lanes<T> - 1}) {
    const heed::index ld = k::round_up(cols, lanes<T>), ldt = ld + 3;
    // Of a row whose maximum is no whole number of octaves, too.
    for (const double top : {6 * ln2, -200 * ln2, 3e6}) {
      std::vector<T> x(static_cast<std::size_t>(3 * ld), nan_of<T>);
      std::vector<T> to(static_cast<std::size_t>(3 * ldt), T(7));
      for (heed::index r = 0; r < 3; ++r) {
        for (heed::index c = 0; c < cols; ++c) {
          x[static_cast<std::size_t>(r * ld + c)] =
              r == 1 || c == 2 ? -infinity<T> : static_cast<T>(top) - T(c) * T(1.5) + T(3);
        }
      }
      const std::vector<T> max = {static_cast<T>(top), -infinity<T>, nan_of<T>};
      const std::vector<T> factor = {T(0.75), T(0), T(1)};
      k::exp_strip<arch>(x.data(), ld, heed::index{3}, cols, max.data(), factor.data(), to.data(),
                         ldt);
      for (heed::index c = 0; c < ldt; ++c) {
        const auto p = static_cast<double>(to[static_cast<std::size_t>(c)]);
        if (c >= ld) {
          CHECK(p == 7);
        } else if (c >= cols || c == 2) {
          CHECK(p == 0);
        } else {
          const auto difference =
              static_cast<double>(x[static_cast<std::size_t>(c)]) - static_cast<double>(max[0]);
          const double exact = 0.75 * std::exp(difference);
          const double size = 4 + std::abs(top) + std::abs(difference);
          CHECK(std::abs(p - exact) <= exact * unit * size + 1e-37);
        }
        if (c < ld) CHECK(to[static_cast<std::size_t>(ldt + c)] == 0);
      }
      CHECK(std::isnan(to[static_cast<std::size_t>(2 * ldt)]));
      if (ld > cols) CHECK(to[static_cast<std::size_t>(2 * ldt + cols)] == 0);
      // In place.
      k::exp_strip<arch>(x.data(), ld, heed::index{3}, cols, max.data(), factor.data(), x.data(),
                         ld);
      for (heed::index c = 0; c < ld; ++c) {
        CHECK(x[static_cast<std::size_t>(c)] == to[static_cast<std::size_t>(c)]);
      }
    }
  }
}

TEMPLATE_TEST_CASE("fill_columns fills its range only", "[kernel][softmax]", float, double) {
  using T = TestType;
  const heed::index n = 3 * lanes<T>;
  heed::index wrong = 0;
  for (heed::index from = 0; from <= n; ++from) {
    for (heed::index to = from; to <= n; ++to) {
      std::vector<T> row(static_cast<std::size_t>(n), T(1));
      k::fill_columns<arch>(row.data(), from, to, -infinity<T>);
      for (heed::index c = 0; c < n; ++c) {
        const T expected = c >= from && c < to ? -infinity<T> : T(1);
        wrong += row[static_cast<std::size_t>(c)] != expected;
      }
    }
  }
  CHECK(wrong == 0);
}
