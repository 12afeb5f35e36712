// FoX beside plain softmax: what the gate costs where the decay of a row block is mild and where it
// is strong, and what pruning saves. heed-ratios interleaves the pairs; this program does not.
#include "heed/mechanisms/fox.hpp"

#include <vector>

#include "causal_call.hpp"

namespace {

// Gates even in [2 log_f, 0].
struct call : causal_call {
  std::vector<float> gates;

  call(heed::index length, float log_f) : causal_call(length), gates(even(T * H, 2 * log_f, 0)) {}
  heed::fox<float> fox() const { return {heed::tensor_view<const float, 3>(gates, {1, T, H})}; }
};

void softmax(benchmark::State& state) {
  call(state.range(0), 0).run(state);
}
void fox_mild(benchmark::State& state) {
  call c(state.range(0), -1.0f / 64);
  c.run(state, c.fox());
}
void fox_strong(benchmark::State& state) {
  call c(state.range(0), -2);
  c.run(state, c.fox());
}
// The rate counts the whole triangle, left out or not.
void fox_pruned(benchmark::State& state) {
  call c(state.range(0), -1.0f / 64);
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
