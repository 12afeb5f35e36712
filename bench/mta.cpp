// MTA: its parts and the large published configuration, causal, one thread, D = 64. Scores per
// second count the visible pairs of a query head's row and a key.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "heed/attend.hpp"
#include "heed/mechanisms/mta.hpp"

namespace {

using heed::index;

constexpr index D = 64, cq = 6, ck = 11;

std::vector<float> random_numbers(index n, float scale) {
  std::mt19937 engine(static_cast<unsigned>(n));
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = normal(engine);
  return values;
}

// The tensors of one call, and every stage of MTA.
struct setting {
  setting(index T_, index H_) : T(T_), H(H_) {}

  index T, H;
  std::vector<float> q = random_numbers(T * H * D, 1), k = random_numbers(T * H * D, 1),
                     v = random_numbers(T * H * D, 1), out = q;
  std::vector<float> kernel = random_numbers(H * cq * ck, 0.3f),
                     pairs_kernel = random_numbers(2 * H * cq * ck, 0.2f),
                     matrix = random_numbers(H * H, 0.3f), pairs = random_numbers(H * 2, 1),
                     weight = random_numbers(D, 1), gates = random_numbers(D * D, 0.1f);
  heed::workspace memory;

  heed::conv<float> conv{{kernel.data(), {H, cq, ck}}};
  heed::conv3<float> conv3{{pairs_kernel.data(), {H, 2, cq, ck}}};
  heed::head_mix<float> mix{{matrix.data(), {H, H}}};
  heed::group_mix<float> mix_pairs{{pairs.data(), {H / 2, 2, 2}}};
  heed::head_norm<float> norm{.weight = {weight.data(), {D}}};
  heed::head_gate<float> gate{{gates.data(), {1, D}}, {weight.data(), {1}}};
  heed::head_gate<float> full_gate{{gates.data(), {D, D}}, {weight.data(), {D}}};
};

// attend with the stages that `list` hands on.
template <class List>
void run(benchmark::State& state, index heads, const List& list) {
  setting s(state.range(0), heads);
  const auto view = [&](auto& x) {
    return heed::tensor_view<float, 4>(x.data(), {1, s.T, s.H, D});
  };
  for (auto _ : state) {
    list(s, [&](const auto&... stages) {
      heed::attend(view(s.q), view(s.k), view(s.v), view(s.out),
                   {.mask = heed::causal(), .workspace = &s.memory}, stages...);
    });
    benchmark::ClobberMemory();
  }
  state.counters["scores/s"] = benchmark::Counter(static_cast<double>(s.T * (s.T + 1) / 2 * s.H),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

void softmax(benchmark::State& state) {
  run(state, state.range(1), [](setting&, auto&& attend) { attend(); });
}
void conv_before(benchmark::State& state) {
  run(state, 8, [](setting& s, auto&& attend) { attend(s.conv); });
}
void conv_before_and_after(benchmark::State& state) {
  run(state, 8, [](setting& s, auto&& attend) { attend(s.conv, heed::after{s.conv}); });
}
void conv_of_head_pairs(benchmark::State& state) {
  run(state, 8, [](setting& s, auto&& attend) { attend(s.conv3); });
}
void pairs_after(benchmark::State& state) {
  run(state, 8, [](setting& s, auto&& attend) { attend(heed::after{s.mix_pairs}); });
}
void norm_and_full_gate(benchmark::State& state) {
  run(state, 8, [](setting& s, auto&& attend) { attend(s.norm, s.full_gate); });
}
// Both convolutions, 16 x 16 mixes on both sides, norm, gate.
void full(benchmark::State& state) {
  run(state, 16, [](setting& s, auto&& attend) {
    attend(s.conv, s.mix, heed::after{s.conv}, heed::after{s.mix}, s.norm, s.gate);
  });
}

}  // namespace

BENCHMARK(softmax)->ArgsProduct({{512, 4096}, {8, 16}})->Unit(benchmark::kMillisecond);
BENCHMARK(conv_before)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(conv_before_and_after)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(conv_of_head_pairs)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(pairs_after)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(norm_and_full_gate)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(full)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
