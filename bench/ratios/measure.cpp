#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "ratios.hpp"

namespace ratios {

double seconds(clock which) {
  timespec t{};
  clock_gettime(which == clock::thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double time_of(const std::function<void()>& f, clock which) {
  const double start = seconds(which);
  f();
  return seconds(which) - start;
}

// Fused multiply-adds on as many accumulators as hide their latency; returns the FLOPs done.
double fma_loop(index steps, float& kept) {
  using vec = xsimd::batch<float>;
  constexpr int accumulators = heed::kernel::has_32_registers<xsimd::default_arch> ? 24 : 12;
  vec sums[accumulators];
  for (int n = 0; n < accumulators; ++n) sums[n] = vec(static_cast<float>(n));
  vec factor(0.999F), addend(0.001F);
  for (index step = 0; step < steps; ++step) {
    heed::kernel::unroll<accumulators>([&](auto n) HEED_INLINE_LAMBDA {
      sums[n] = heed::kernel::multiply_add(sums[n], factor, addend);
    });
    asm volatile("" : "+x"(factor.data));  // every round is done
  }
  for (const vec& s : sums) kept += heed::kernel::sum_lanes(s);
  return 2.0 * accumulators * static_cast<double>(vec::size) * static_cast<double>(steps);
}

double vm_high_water_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      double kb = 0;
      status >> kb;
      return kb / 1024;
    }
  }
  throw std::runtime_error("heed-ratios: /proc/self/status has no VmHWM");
}

}  // namespace

double time_ratio(const std::function<void()>& f, const std::function<void()>& g, int pairs,
                  clock which) {
  f();
  g();
  std::vector<double> ratio;
  for (int n = 0; n < pairs; ++n) {
    const double before = time_of(g, which);
    const double of_f = time_of(f, which);
    const double after = time_of(g, which);
    ratio.push_back(2 * of_f / (before + after));
  }
  return median(ratio);
}

double fma_rate(double duration) {
  float kept = 0;
  double flops = 0;
  const double start = seconds(clock::thread);
  double now = start;
  while (now - start < duration) {
    flops += fma_loop(20000, kept);
    now = seconds(clock::thread);
  }
  volatile float sink = kept;
  (void)sink;
  return flops / (now - start);
}

double part_of_fma_peak(const std::function<void()>& f, double flops, int pairs) {
  f();
  const double once = time_of(f, clock::thread);
  const int repeats = once < 0.01 ? static_cast<int>(0.01 / once) + 1 : 1;
  std::vector<double> part;
  for (int n = 0; n < pairs; ++n) {
    const double before = fma_rate(0.01);
    const double time = time_of(
                            [&] {
                              for (int r = 0; r < repeats; ++r) f();
                            },
                            clock::thread) /
                        repeats;
    const double after = fma_rate(0.01);
    part.push_back(flops / time / ((before + after) / 2));
  }
  return median(part);
}

double extra_mb(const std::function<void()>& f, double tensor_bytes) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("heed-ratios: pipe failed");
#ifdef __GLIBC__
  malloc_trim(0);  // what earlier measurements have freed would count as the child's
#endif
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("heed-ratios: fork failed");
  if (child == 0) {
    f();
    const double peak = vm_high_water_mb();
    const bool sent = write(ends[1], &peak, sizeof peak) == sizeof peak;
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  double peak = 0;
  const bool received = read(ends[0], &peak, sizeof peak) == sizeof peak;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!received || status != 0) throw std::runtime_error("heed-ratios: the measured run failed");
  return peak - tensor_bytes / 1048576;
}

std::vector<float> normal(index count, unsigned seed, float scale) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> draw(0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = draw(bits);
  return values;
}

problem::problem(index tokens, index heads, index head_size, index kv_heads)
    : T(tokens),
      Hq(heads),
      Hkv(kv_heads == 0 ? heads : kv_heads),
      D(head_size),
      q_data(normal(T * Hq * D, 1)),
      k_data(normal(T * Hkv * D, 2)),
      v_data(normal(T * Hkv * D, 3)),
      out_data(static_cast<std::size_t>(T * Hq * D)) {}

}  // namespace ratios
