// One causal call, of 8 heads of 64, that benchmarks time with various mechanisms.
#pragma once

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "heed/attend.hpp"

struct causal_call {
  static constexpr heed::index H = 8, D = 64;
  heed::index T;
  std::mt19937 engine{1};
  std::normal_distribution<float> normal;
  std::vector<float> q, k, v, out;
  heed::workspace memory;

  explicit causal_call(heed::index tokens)
      : T(tokens), q(normals(T * H * D)), k(normals(T * H * D)), v(normals(T * H * D)), out(q) {}

  std::vector<float> normals(heed::index count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& value : x) value = normal(engine);
    return x;
  }
  std::vector<float> even(heed::index count, float from, float to) {
    std::uniform_real_distribution<float> distribution(from, to);
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& value : x) value = distribution(engine);
    return x;
  }
  heed::tensor_view<const float, 4> view(const std::vector<float>& x) const {
    return {x.data(), {1, T, H, D}};
  }

  template <class... Mechanisms>
  void run(benchmark::State& state, const Mechanisms&... mechanisms) {
    const heed::tensor_view<float, 4> result(out.data(), {1, T, H, D});
    for (auto _ : state) {
      heed::attend(view(q), view(k), view(v), result,
                   {.mask = heed::causal(), .workspace = &memory}, mechanisms...);
      benchmark::ClobberMemory();
    }
    const auto t = static_cast<double>(T);
    state.counters["FLOP/s"] = benchmark::Counter(2 * static_cast<double>(H * D) * t * (t + 1),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  }
};
