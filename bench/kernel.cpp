// The kernel primitives alone: how near the product comes to the FMA peak, and what softmax, exp
// and packing cost per element. Figures vary with what else runs on the machine; heed-ratios
// interleaves, this program does not.
#include <benchmark/benchmark.h>

#include <limits>
#include <random>
#include <vector>

#include "heed/kernel/pack.hpp"
#include "heed/kernel/softmax.hpp"

namespace {

namespace k = heed::kernel;
using arch = k::default_arch;

std::vector<float> random_numbers(heed::index n, float scale = 1) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = normal(engine);
  return values;
}

void per_second(benchmark::State& state, const char* name, double amount) {
  state.counters[name] = benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
}

// FMAs on registers only: the ceiling of everything here.
void fma_peak(benchmark::State& state) {
  constexpr int count = 6 * k::vectors_per_tile<arch>;
  using v = k::vec<float, arch>;
  v sum[count];
  k::unroll<count>([&](auto i) { sum[i] = v(static_cast<float>(i)); });
  const v a(0.999f), b(0.001f);
  for (auto _ : state) {
    for (int n = 0; n < 1000; ++n) {
      k::unroll<count>([&](auto i) HEED_INLINE_LAMBDA { sum[i] = k::multiply_add(sum[i], a, b); });
    }
  }
  v total(0.0f);
  k::unroll<count>([&](auto i) { total += sum[i]; });
  benchmark::DoNotOptimize(k::sum_lanes(total));
  per_second(state, "FLOP/s", 2000.0 * count * double(k::width<float, arch>));
}
BENCHMARK(fma_peak);

// rows x 64 times 64 x depth, B packed and in the L1 cache.
void product(benchmark::State& state) {
  const heed::index rows = state.range(0), depth = state.range(1), cols = 64, ldc = 80;
  const auto a = random_numbers(rows * depth), b = random_numbers(depth * cols);
  std::vector<float> c(static_cast<std::size_t>(rows * ldc));
  for (auto _ : state) {
    k::product<arch>(a.data(), depth, b.data(), cols, c.data(), ldc, rows, cols, depth,
                     k::start::zero);
    benchmark::ClobberMemory();
  }
  per_second(state, "FLOP/s", 2.0 * double(rows * cols * depth));
}
BENCHMARK(product)->ArgsProduct({{1, 6, 12, 96}, {64, 128}});

void softmax_strip(benchmark::State& state) {
  const heed::index rows = 12, cols = state.range(0), ld = cols + 16, dv = 64;
  const auto x = random_numbers(rows * ld);
  auto p = x;
  std::vector<float> max(12, -std::numeric_limits<float>::infinity());
  std::vector<float> sum(12 * k::vec<float, arch>::size), out(12 * 64);
  const k::softmax_rows<float> rows_state{max.data(), sum.data(), out.data(), dv, dv};
  for (auto _ : state) {
    for (std::size_t i = 0; i < x.size(); ++i) p[i] = x[i];
    k::softmax_strip<arch>(p.data(), ld, rows, cols, rows_state);
    benchmark::ClobberMemory();
  }
  per_second(state, "logits/s", double(rows * cols));
}
BENCHMARK(softmax_strip)->Arg(64)->Arg(128)->Arg(256);

template <class F>
void function_of_vectors(benchmark::State& state, F f) {
  auto x = random_numbers(4096, 3.0f);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    for (std::size_t i = 0; i < x.size(); i += k::vec<float, arch>::size) {
      k::store_vec<arch>(y.data() + i, f(k::load_vec<arch>(x.data() + i)));
    }
    benchmark::ClobberMemory();
  }
  per_second(state, "values/s", double(x.size()));
}
BENCHMARK_CAPTURE(function_of_vectors, exp, [](const auto& x) { return k::exp<arch>(x); });
BENCHMARK_CAPTURE(function_of_vectors, exp_negative,
                  [](const auto& x) { return k::exp_negative<arch>(x); });
BENCHMARK_CAPTURE(function_of_vectors, sigmoid, [](const auto& x) { return k::sigmoid<arch>(x); });
BENCHMARK_CAPTURE(function_of_vectors, tanh, [](const auto& x) { return k::tanh<arch>(x); });

void pack_columns(benchmark::State& state) {
  const heed::index n = 512, depth = state.range(0);
  const auto keys = random_numbers(n * depth);
  std::vector<float> packed(
      static_cast<std::size_t>(k::packed_columns_size<arch, float>(n, depth)));
  for (auto _ : state) {
    k::pack_columns<arch>(keys.data(), depth, heed::index{1}, n, depth, packed.data());
    benchmark::ClobberMemory();
  }
  per_second(state, "values/s", double(n * depth));
}
BENCHMARK(pack_columns)->Arg(64)->Arg(128);

}  // namespace

BENCHMARK_MAIN();
