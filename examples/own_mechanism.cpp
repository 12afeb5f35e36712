// A mechanism of one's own in a list with others, and held against the reference.
#include "own_mechanism/slope_bias.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  constexpr heed::index B = 2, T = 300, heads = 4, D = 32;
  std::mt19937 bits(1);
  std::normal_distribution<float> normal;
  const auto random = [&] {
    std::vector<float> x(B * T * heads * D);
    std::generate(x.begin(), x.end(), [&] { return normal(bits); });
    return x;
  };
  const std::vector<float> q = random(), k = random(), v = random();
  std::vector<float> out(q.size()), expected(q.size());
  const auto in = [](const std::vector<float>& x) {
    return heed::tensor_view<const float, 4>(x.data(), {B, T, heads, D});
  };
  const auto to = [](std::vector<float>& x) {
    return heed::tensor_view<float, 4>(x.data(), {B, T, heads, D});
  };

  const slope_bias slope{0.05};
  const heed::softcap cap{20};
  heed::attend(in(q), in(k), in(v), to(out), {.mask = heed::causal()}, slope, cap);
  heed::reference::attend<float>(in(q), in(k), in(v), to(expected), {.mask = heed::causal()}, slope,
                                 cap);

  float difference = 0;
  for (std::size_t n = 0; n < out.size(); ++n) {
    difference = std::max(difference, std::abs(out[n] - expected[n]));
  }
  std::printf("largest difference from the reference: %.1e\n", static_cast<double>(difference));
  return difference < 1e-5F ? 0 : 1;
}
