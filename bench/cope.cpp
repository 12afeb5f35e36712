// CoPE beside plain softmax attention: gates that stay open for long, gates that fill the table
// early, gates from separate keys. heed-ratios measures the same by interleaving.
#include "heed/mechanisms/cope.hpp"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "heed/attend.hpp"

namespace {

constexpr heed::index H = 8, D = 64;

struct call {
  heed::index T, npos;
  std::vector<float> q, k, v, u, e, out;
  heed::workspace memory;

  // Gates near sigmoid(typical): the first component of every query is 8, that of the keys decides.
  call(heed::index tokens, heed::index table, float typical)
      : T(tokens), npos(table), out(static_cast<std::size_t>(T * H * D)) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::vector<float>& x, heed::index n) {
      x.resize(static_cast<std::size_t>(n));
      for (float& value : x) value = normal(engine);
    };
    for (std::vector<float>* x : {&q, &k, &v, &u}) draw(*x, T * H * D);
    draw(e, D * npos);
    for (std::size_t n = 0; n < q.size(); n += D) {
      q[n] = 8;
      k[n] = typical;
      u[n] = typical;
    }
  }
  heed::tensor_view<const float, 4> view(const std::vector<float>& x) const {
    return {x.data(), {1, T, H, D}};
  }
  template <class... Mechanisms>
  void attend(benchmark::State& state, const Mechanisms&... mechanisms) {
    const heed::tensor_view<float, 4> result(out.data(), {1, T, H, D});
    for (auto _ : state) {
      heed::attend(view(q), view(k), view(v), result,
                   {.mask = heed::causal(), .workspace = &memory}, mechanisms...);
      benchmark::ClobberMemory();
    }
    state.counters["FLOP/s"] = benchmark::Counter(2.0 * double(H * D * T) * double(T + 1),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  }
  heed::tensor_view<const float, 2> table() const { return {e.data(), {D, npos}}; }
};

void softmax(benchmark::State& state) {
  call c(state.range(0), 1, 0);
  c.attend(state);
}
BENCHMARK(softmax)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);

// Gates near 0.01: no row reaches the last of its positions.
void cope_open(benchmark::State& state) {
  call c(state.range(0), state.range(1), -4.6f);
  c.attend(state, heed::cope{c.table()});
}
BENCHMARK(cope_open)->ArgsProduct({{512, 4096}, {64, 1024}})->Unit(benchmark::kMillisecond);

// Gates near 0.5: rows are saturated after 2 npos keys.
void cope_saturating(benchmark::State& state) {
  call c(state.range(0), state.range(1), 0);
  c.attend(state, heed::cope{c.table()});
}
BENCHMARK(cope_saturating)->ArgsProduct({{512, 4096}, {64, 1024}})->Unit(benchmark::kMillisecond);

// Gates near 0.01 from keys of their own: one more product until a row is saturated.
void cope_separate_keys(benchmark::State& state) {
  call c(state.range(0), state.range(1), -4.6f);
  c.attend(state, heed::cope{c.table(), heed::cope_scale::divided, heed::cope_gates::separate_keys,
                             c.view(c.u)});
}
BENCHMARK(cope_separate_keys)->ArgsProduct({{512, 4096}, {64}})->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
