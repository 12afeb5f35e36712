// One token at a time: a step of a cache that holds so many tokens.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "heed/cache.hpp"
#include "heed/half.hpp"
#include "heed/mechanisms/path.hpp"

namespace {

using heed::index;

// Steps of a cache with `tokens` tokens: append, attend, and the token taken back.
template <class Element, class... Mechanisms>
void step(benchmark::State& state, index heads, index kv_heads, index D) {
  const index tokens = state.range(0);
  std::mt19937 bits(1);
  std::normal_distribution<float> draw;
  const auto normal = [&](index n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& value : x) value = draw(bits);
    return x;
  };
  const std::vector<float> k = normal(tokens * kv_heads * D), v = normal(tokens * kv_heads * D),
                           q = normal(heads * D),
                           w(static_cast<std::size_t>(tokens * kv_heads * D), 0.1F),
                           beta(static_cast<std::size_t>(tokens * kv_heads), 0.5F);
  std::vector<float> out(q.size());
  heed::KvCache<Element, Mechanisms...> cache(
      {.heads = heads, .kv_heads = kv_heads, .head_size = D, .capacity = tokens + 64}, {},
      Mechanisms{}...);
  const auto append = [&](index n) {
    [[maybe_unused]] const auto part = [&](auto mechanism) {
      mechanism.w = {w.data(), {1, n, kv_heads, D}};
      mechanism.beta = {beta.data(), {1, n, kv_heads}};
      return mechanism;
    };
    cache.append(0, heed::tensor_view<const float, 4>(k.data(), {1, n, kv_heads, D}),
                 heed::tensor_view<const float, 4>(v.data(), {1, n, kv_heads, D}),
                 part(Mechanisms{})...);
  };
  append(tokens);
  for (auto _ : state) {
    append(1);
    cache.attend(0, heed::tensor_view<const float, 4>(q.data(), {1, 1, heads, D}),
                 heed::tensor_view<float, 4>(out.data(), {1, 1, heads, D}));
    cache.rollback(0, 1);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * 2 * tokens * kv_heads *
                          D *
                          static_cast<std::int64_t>(sizeof(typename decltype(cache)::stored_type)));
}

void softmax(benchmark::State& state) {
  step<float>(state, 8, 8, 64);
}
void softmax_bfloat16(benchmark::State& state) {
  step<heed::stored_as<float, heed::bfloat16>>(state, 8, 8, 64);
}
void grouped(benchmark::State& state) {
  step<float>(state, 32, 8, 128);
}
void path(benchmark::State& state) {
  step<float, heed::path<float>>(state, 8, 8, 64);
}

BENCHMARK(softmax)->RangeMultiplier(8)->Range(128, 65536)->Unit(benchmark::kMicrosecond);
BENCHMARK(softmax_bfloat16)->RangeMultiplier(8)->Range(128, 65536)->Unit(benchmark::kMicrosecond);
BENCHMARK(grouped)->RangeMultiplier(8)->Range(128, 65536)->Unit(benchmark::kMicrosecond);
BENCHMARK(path)->RangeMultiplier(8)->Range(128, 65536)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
