// PaTH beside plain softmax: alone, with FoX, with other sizes of blocks, and on walks that shrink
// queries to nothing (no slower: numbers below 1e-30 become 0 on the way). heed-ratios interleaves
// the pairs; this program does not.
#include "heed/mechanisms/path.hpp"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "heed/attend.hpp"
#include "heed/mechanisms/fox.hpp"

namespace {

// One sequence, 8 heads of 64, causal; directions of length 1.
struct call {
  static constexpr heed::index H = 8, D = 64;
  heed::index T;
  std::vector<float> q, k, v, w, out, beta, gates;
  heed::workspace memory;

  explicit call(heed::index length)
      : T(length),
        q(size()),
        k(size()),
        v(size()),
        w(size()),
        out(size()),
        beta(size() / D),
        gates(size() / D) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> even(0, 1);
    for (auto* tensor : {&q, &k, &v, &w}) {
      for (float& x : *tensor) x = normal(engine);
    }
    const heed::tensor_view<float, 4> directions(w, {1, T, H, D});
    heed::path_directions(directions, directions);
    for (float& x : beta) x = 2 * even(engine);
    for (float& x : gates) x = -even(engine) / 32;
  }
  std::size_t size() const { return static_cast<std::size_t>(T * H * D); }
  heed::path<float> path(heed::index chunk = 0, heed::index block = 0) const {
    return {{w, {1, T, H, D}}, {beta, {1, T, H}}, chunk, block};
  }

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
  call(state.range(0)).run(state);
}
void path(benchmark::State& state) {
  call c(state.range(0));
  c.run(state, c.path());
}
void path_blocks(benchmark::State& state) {
  call c(state.range(0));
  c.run(state, c.path(64, state.range(1)));
}
void path_fox(benchmark::State& state) {
  call c(state.range(0));
  c.run(state, c.path(), heed::fox<float>{{c.gates, {1, c.T, c.H}}});
}
// Beta close to 1 along the axes in turn: each round leaves a thousandth of a query.
void path_shrinking(benchmark::State& state) {
  call c(state.range(0));
  for (std::size_t n = 0; n < c.size(); ++n) {
    const std::size_t token = n / static_cast<std::size_t>(c.H * c.D);
    c.w[n] = n % static_cast<std::size_t>(c.D) == token % static_cast<std::size_t>(c.D) ? 1 : 0;
  }
  for (float& x : c.beta) x = 0.999F;
  c.run(state, c.path());
}

BENCHMARK(softmax)->Arg(512)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(path)->Arg(512)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(path_blocks)
    ->ArgsProduct({{4096}, {64, 256, 512, 1024, 4096}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(path_fox)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(path_shrinking)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
