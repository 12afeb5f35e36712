// FoX beside plain softmax: what the gate costs where the decay of a row block is mild and where it
// is strong, and what pruning saves. heed-ratios interleaves the pairs; this program does not.
#include "heed/mechanisms/fox.hpp"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "heed/attend.hpp"

namespace {

// One sequence, 8 heads of 64, causal; gates even in [2 log_f, 0].
struct call {
  static constexpr heed::index H = 8, D = 64;
  heed::index T;
  std::vector<float> q, k, v, out, gates;
  heed::workspace memory;

  call(heed::index length, double log_f)
      : T(length), q(size()), k(size()), v(size()), out(size()), gates(size() / D) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> even(static_cast<float>(2 * log_f), 0);
    for (auto* tensor : {&q, &k, &v}) {
      for (float& x : *tensor) x = normal(engine);
    }
    for (float& g : gates) g = even(engine);
  }
  std::size_t size() const { return static_cast<std::size_t>(T * H * D); }
  heed::fox<float> fox() const { return {heed::tensor_view<const float, 3>(gates, {1, T, H})}; }

  template <class... Mechanisms>
  void run(benchmark::State& state, const Mechanisms&... mechanisms) {
    using view = heed::tensor_view<const float, 4>;
    const heed::shape<4> shape{1, T, H, D};
    for (auto _ : state) {
      heed::attend(view(q, shape), view(k, shape), view(v, shape),
                   heed::tensor_view<float, 4>(out, shape),
                   {.mask = heed::causal(), .workspace = &memory}, mechanisms...);
      benchmark::ClobberMemory();
    }
    const auto t = static_cast<double>(T);
    state.counters["FLOP/s"] = benchmark::Counter(2 * static_cast<double>(H * D) * t * (t + 1),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  }
};

void softmax(benchmark::State& state) {
  call(state.range(0), 0).run(state);
}
void fox_mild(benchmark::State& state) {
  call c(state.range(0), -1.0 / 64);
  c.run(state, c.fox());
}
void fox_strong(benchmark::State& state) {
  call c(state.range(0), -2);
  c.run(state, c.fox());
}
// The rate counts the whole triangle, left out or not.
void fox_pruned(benchmark::State& state) {
  call c(state.range(0), -1.0 / 64);
  heed::fox<float> fox = c.fox();
  fox.prune = heed::pruning{};
  c.run(state, fox);
}

BENCHMARK(softmax)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(fox_mild)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(fox_strong)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(fox_pruned)->Arg(1024)->Arg(4096)->Arg(16384)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
