// product() and the packed layouts against plain loops.
#include "heed/kernel/tile.hpp"

#include <cmath>
#include <random>
#include <vector>

#include "catch.hpp"
#include "heed/kernel/pack.hpp"

namespace {

namespace k = heed::kernel;
using arch = k::default_arch;

template <class T>
std::vector<T> random_numbers(heed::index n, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) value = static_cast<T>(uniform(engine));
  return values;
}

template <class T>
T& at(std::vector<T>& values, heed::index i) {
  return values[static_cast<std::size_t>(i)];
}

// Largest error over rounding unit and length, for one shape and start; -1 when something outside
// the promised columns was written.
template <class T>
double product_error(heed::index rows, heed::index cols, heed::index depth, k::start from) {
  const heed::index room = k::round_up(cols, k::width<T, arch>);
  const heed::index lda = depth + 2, ldb = room + 1, ldc = room + 3;
  auto a = random_numbers<T>(rows * lda + 1, 1);
  auto b = random_numbers<T>(depth * ldb + 1, 2);
  auto c = random_numbers<T>(rows * ldc + 1, 3);
  auto bias = random_numbers<T>(room + 1, 4);
  auto before = c;
  k::product<arch>(a.data(), lda, b.data(), ldb, c.data(), ldc, rows, cols, depth, from,
                   bias.data());
  double worst = 0;
  for (heed::index i = 0; i < rows; ++i) {
    for (heed::index j = 0; j < ldc; ++j) {
      if (j >= room) {
        if (at(c, i * ldc + j) != at(before, i * ldc + j)) return -1;
      } else if (j < cols) {
        long double expected = from == k::start::zero ? 0.0L
                               : from == k::start::add
                                   ? static_cast<long double>(at(before, i * ldc + j))
                                   : static_cast<long double>(at(bias, j));
        for (heed::index d = 0; d < depth; ++d) {
          expected += static_cast<long double>(at(a, i * lda + d)) *
                      static_cast<long double>(at(b, d * ldb + j));
        }
        worst = std::max(worst, static_cast<double>(std::abs(at(c, i * ldc + j) - expected)));
      }
    }
  }
  if (at(c, rows * ldc) != at(before, rows * ldc)) return -1;
  return worst / (double(std::numeric_limits<T>::epsilon()) * double(depth + 1));
}

}  // namespace

TEMPLATE_TEST_CASE("product_transposed is product with A the other way round", "[kernel][product]",
                   float, double) {
  for (heed::index rows = 0; rows <= 14; ++rows) {
    for (const heed::index cols : {1, 7, 16, 33, 64, 70}) {
      for (const heed::index depth : {0, 1, 3, 4, 5, 9}) {
        const heed::index ldc = k::round_up(cols, k::width<TestType, arch>) + 3, lda = rows + 2;
        const auto a = random_numbers<TestType>(depth * lda + 1, 1);
        const auto b = random_numbers<TestType>(depth * ldc + 1, 2);
        std::vector<TestType> turned(static_cast<std::size_t>(rows * depth + 1));
        for (heed::index r = 0; r < rows; ++r) {
          for (heed::index d = 0; d < depth; ++d) {
            at(turned, r * depth + d) = a[static_cast<std::size_t>(d * lda + r)];
          }
        }
        auto c = random_numbers<TestType>(rows * ldc + 1, 3);
        auto expected = c;
        k::product<arch>(turned.data(), depth, b.data(), ldc, expected.data(), ldc, rows, cols,
                         depth, k::start::add);
        k::product_transposed<arch>(a.data(), lda, b.data(), ldc, c.data(), ldc, rows, cols, depth,
                                    k::start::add);
        REQUIRE(c == expected);
      }
    }
  }
}

TEMPLATE_TEST_CASE("product equals plain loops for every small shape", "[kernel][product]", float,
                   double) {
  const k::start from = GENERATE(k::start::zero, k::start::add, k::start::row_bias);
  double worst = 0;
  for (heed::index rows = 0; rows <= 14; ++rows) {
    for (heed::index cols = 0; cols <= k::strip_width<TestType, arch> + 9; ++cols) {
      for (const heed::index depth : {0, 1, 3, 4, 5, 9}) {
        const double error = product_error<TestType>(rows, cols, depth, from);
        if (error < 0) FAIL("wrote outside: " << rows << " x " << cols << " x " << depth);
        worst = std::max(worst, error);
      }
    }
  }
  CHECK(worst < 1);
}

TEMPLATE_TEST_CASE("product over several strips and a long depth", "[kernel][product]", float,
                   double) {
  for (const heed::index cols : {100, 128, 200, 257}) {
    const double error = product_error<TestType>(25, cols, 131, k::start::add);
    CHECK(error >= 0);
    CHECK(error < 1);
  }
}

TEMPLATE_TEST_CASE("pack_columns transposes and pads with zeros", "[kernel][pack]", float, double) {
  constexpr heed::index strip = k::strip_width<TestType, arch>;
  for (const heed::index n :
       {heed::index{0}, heed::index{1}, strip - 1, strip, strip + 1, 2 * strip, 3 * strip - 5}) {
    for (const heed::index depth : {1, 3, 16, 33, 37, 64}) {
      for (const heed::index element : {1, 2}) {
        const heed::index row = depth * element + 3;
        auto keys = random_numbers<TestType>(n * row + 1, 5);
        const heed::index size = k::packed_columns_size<arch, TestType>(n, depth);
        std::vector<TestType> packed(static_cast<std::size_t>(size + 1), TestType(7));
        k::pack_columns<arch>(keys.data(), row, element, n, depth, packed.data());
        heed::index wrong = 0;
        for (heed::index j = 0; j < k::round_up(n, strip); ++j) {
          for (heed::index d = 0; d < depth; ++d) {
            const TestType expected = j < n ? at(keys, j * row + d * element) : TestType(0);
            wrong += at(packed, (j / strip * depth + d) * strip + j % strip) != expected;
          }
        }
        CHECK(wrong == 0);
        CHECK(at(packed, size) == TestType(7));

        std::vector<TestType> back(static_cast<std::size_t>(n * depth + 1), TestType(7));
        k::unpack_columns<arch>(packed.data(), n, depth, back.data(), depth);
        for (heed::index j = 0; j < n; ++j) {
          for (heed::index d = 0; d < depth; ++d) {
            wrong += at(back, j * depth + d) != at(keys, j * row + d * element);
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEMPLATE_TEST_CASE("copy_rows gathers, scales and pads", "[kernel][pack]", float, double) {
  for (const heed::index cols : {0, 1, 5, 16, 37, 64}) {
    for (const heed::index element : {0, 1, 3}) {
      const heed::index row = cols * element + 5, ldt = cols + 4, rows = 7;
      auto from = random_numbers<TestType>(rows * row + 1, 6);
      std::vector<TestType> to(static_cast<std::size_t>(rows * ldt + 1), TestType(7));
      k::copy_rows<arch>(from.data(), row, element, rows, cols, to.data(), ldt, TestType(0.5));
      heed::index wrong = 0;
      for (heed::index r = 0; r < rows; ++r) {
        for (heed::index c = 0; c < ldt; ++c) {
          const TestType expected =
              c < cols ? at(from, r * row + c * element) * TestType(0.5) : TestType(0);
          wrong += at(to, r * ldt + c) != expected;
        }
      }
      CHECK(wrong == 0);
      CHECK(at(to, rows * ldt) == TestType(7));
    }
  }
}
