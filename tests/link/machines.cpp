// One program with the code of two instruction sets. Both must agree with plain loops; the AVX2
// code is called where the processor has it.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <vector>

using attention = void(const float* q, const float* k, const float* v, float* out, std::ptrdiff_t T,
                       std::ptrdiff_t D);
attention attend_on_avx2, attend_on_sse2;

constexpr std::size_t T = 37, D = 20;

static std::vector<double> plain(const std::vector<float>& q, const std::vector<float>& k,
                                 const std::vector<float>& v) {
  std::vector<double> out(T * D, 0.0);
  for (std::size_t i = 0; i < T; ++i) {
    double total = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (std::size_t d = 0; d < D; ++d) dot += double(q[i * D + d]) * double(k[j * D + d]);
      const double weight = std::exp(dot / std::sqrt(double(D)));
      total += weight;
      for (std::size_t d = 0; d < D; ++d) out[i * D + d] += weight * double(v[j * D + d]);
    }
    for (std::size_t d = 0; d < D; ++d) out[i * D + d] /= total;
  }
  return out;
}

int main() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> q(T * D), k(T * D), v(T * D), out(T * D);
  for (auto* tensor : {&q, &k, &v}) {
    for (float& x : *tensor) x = normal(random);
  }
  const std::vector<double> expected = plain(q, k, v);

  const auto agrees = [&](attention* attend) {
    attend(q.data(), k.data(), v.data(), out.data(), T, D);
    double error = 0;
    for (std::size_t n = 0; n < T * D; ++n) {
      // Not std::max, which drops a NaN.
      if (!(std::abs(double(out[n]) - expected[n]) <= error)) {
        error = std::abs(double(out[n]) - expected[n]);
      }
    }
    std::printf("largest error %g\n", error);
    return error < 3e-6;
  };
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return agrees(attend_on_sse2) && (!has_avx2 || agrees(attend_on_avx2)) ? 0 : 1;
}
