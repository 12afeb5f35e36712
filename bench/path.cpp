// PaTH beside plain softmax: alone, with FoX, with other sizes of blocks, and on walks that shrink
// queries to nothing (no slower: numbers below 1e-30 become 0 on the way). heed-ratios interleaves
// the pairs; this program does not.
#include "heed/mechanisms/path.hpp"

#include <vector>

#include "causal_call.hpp"
#include "heed/mechanisms/fox.hpp"

namespace {

// Directions of length 1.
struct call : causal_call {
  std::vector<float> w, beta, gates;

  explicit call(heed::index length)
      : causal_call(length),
        w(normals(T * H * D)),
        beta(even(T * H, 0, 2)),
        gates(even(T * H, -1.0f / 32, 0)) {
    const heed::tensor_view<float, 4> directions(w, {1, T, H, D});
    heed::path_directions(directions, directions);
  }
  heed::path<float> path(heed::index chunk = 0, heed::index block = 0) const {
    return {view(w), {beta, {1, T, H}}, chunk, block};
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
  for (std::size_t n = 0; n < c.w.size(); ++n) {
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
