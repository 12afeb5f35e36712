// CoPE beside plain softmax attention: gates that stay open for long, gates that fill the table
// early, gates from separate keys. heed-ratios measures the same by interleaving.
#include "heed/mechanisms/cope.hpp"

#include <vector>

#include "causal_call.hpp"

namespace {

struct call : causal_call {
  heed::index npos;
  std::vector<float> u, e;

  // Gates near sigmoid(typical): the first component of every query is 8, that of the keys decides.
  call(heed::index tokens, heed::index table, float typical)
      : causal_call(tokens), npos(table), u(normals(T * H * D)), e(normals(D * npos)) {
    for (std::size_t n = 0; n < q.size(); n += D) {
      q[n] = 8;
      k[n] = typical;
      u[n] = typical;
    }
  }
  heed::tensor_view<const float, 2> table() const { return {e.data(), {D, npos}}; }
};

void softmax(benchmark::State& state) {
  call c(state.range(0), 1, 0);
  c.run(state);
}
BENCHMARK(softmax)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);

// Gates near 0.01: no row reaches the last of its positions.
void cope_open(benchmark::State& state) {
  call c(state.range(0), state.range(1), -4.6f);
  c.run(state, heed::cope{c.table()});
}
BENCHMARK(cope_open)->ArgsProduct({{512, 4096}, {64, 1024}})->Unit(benchmark::kMillisecond);

// Gates near 0.5: rows are saturated after 2 npos keys.
void cope_saturating(benchmark::State& state) {
  call c(state.range(0), state.range(1), 0);
  c.run(state, heed::cope{c.table()});
}
BENCHMARK(cope_saturating)->ArgsProduct({{512, 4096}, {64, 1024}})->Unit(benchmark::kMillisecond);

// Gates near 0.01 from keys of their own: one more product until a row is saturated.
void cope_separate_keys(benchmark::State& state) {
  call c(state.range(0), state.range(1), -4.6f);
  c.run(state, heed::cope{c.table(), heed::cope_scale::divided, heed::cope_gates::separate_keys,
                          c.view(c.u)});
}
BENCHMARK(cope_separate_keys)->ArgsProduct({{512, 4096}, {64}})->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
