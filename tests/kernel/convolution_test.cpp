// The register tile of convolutions against plain loops, and what it rounds.
#include "heed/kernel/convolution.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "random_problem.hpp"

namespace {

namespace k = heed::kernel;
using arch = k::default_arch;

// Over the root mean square of the output, in units of rounding.
struct tile_error {
  double mean_square = 0, largest = 0;
};

// Tiles of 8 rows, the first `hidden` kernel rows left out, with normal input and weights.
template <class T>
tile_error error_of(heed::index queries, heed::index keys, heed::index hidden, bool add) {
  constexpr heed::index rows = 8, w = k::width<T, arch>;
  const heed::index ld = w + keys - 1;
  heed_test::random_source random(1);
  const auto normal = [&](heed::index n) {
    std::vector<T> x(static_cast<std::size_t>(n));
    for (T& one : x) one = static_cast<T>(random.normal());
    return x;
  };
  double squares = 0, error_squares = 0, largest = 0;
  for (int tile = 0; tile < 400; ++tile) {
    const auto in = normal((rows + queries - 1) * ld), weights = normal(queries * keys);
    auto out = normal(rows * w);
    const auto before = out;
    k::convolve_tile<arch, rows>(in.data(), weights.data(), {ld, queries, keys}, hidden, queries,
                                 add, out.data(), w);
    for (heed::index r = 0; r < rows; ++r) {
      for (heed::index c = 0; c < w; ++c) {
        const auto at = static_cast<std::size_t>(r * w + c);
        long double sum = add ? before[at] : T(0);
        for (heed::index a = hidden; a < queries; ++a) {
          for (heed::index b = 0; b < keys; ++b) {
            sum += static_cast<long double>(weights[static_cast<std::size_t>(b * queries + a)]) *
                   static_cast<long double>(in[static_cast<std::size_t>((r + a) * ld + c + b)]);
          }
        }
        const auto error = std::abs(static_cast<double>(static_cast<long double>(out[at]) - sum));
        error_squares += error * error;
        squares += static_cast<double>(sum * sum);
        largest = std::max(largest, error);
      }
    }
  }
  const double eps = std::numeric_limits<T>::epsilon();
  return {std::sqrt(error_squares / squares) / eps,
          largest / std::sqrt(squares / (400 * rows * w)) / eps};
}

}  // namespace

TEMPLATE_TEST_CASE("A tile's sums, of kernels of any size", "[kernel]", float, double) {
  for (const heed::index queries : {1, 2, 3, 5, 6, 7, 9, 14}) {
    for (const heed::index keys : {1, 2, 11}) {
      for (const heed::index hidden : {heed::index{0}, queries / 2}) {
        for (const bool add : {false, true}) {
          CAPTURE(queries, keys, hidden, add);
          CHECK(error_of<TestType>(queries, keys, hidden, add).largest < 20);
        }
      }
    }
  }
}

// One sum of 66 products is off by 1.24 units in the mean square, three sums of 22 by 0.83.
TEST_CASE("A tile's sums in pieces round less", "[kernel]") {
  const tile_error e = error_of<float>(6, 11, 0, false);
  INFO("mean square " << e.mean_square << ", largest " << e.largest);
  CHECK(e.mean_square < (k::partial_sums<arch> == 3 ? 0.9 : 1.4));
}
