#include "backward_ratios.hpp"

namespace ratios {

namespace {

double softmax_backward() {
  backward_problem p(4096, 8, 64);
  return backward_against_forward(p);
}

// FLOPs 10 H D T (T + 1) / 2: five products where forward has two.
double of_fma_peak() {
  backward_problem p(4096, 8, 64);
  p.forward();
  return part_of_fma_peak([&] { p.backward({}); }, 2.5 * p.causal_flops(), 7);
}

double two_threads() {
  backward_problem p(4096, 8, 64);
  p.forward();
  heed::thread_pool pool(2);
  return time_ratio([&] { p.backward({}); }, [&] { p.backward(pool); }, 7, clock::wall);
}

}  // namespace

void add_backward(std::vector<entry>& list) {
  list.push_back({"softmax_backward", "backward's time over forward's, causal, D = 64, T = 4096",
                  softmax_backward});
  list.push_back(
      {"softmax_backward_of_fma_peak", "causal backward, part of the FMA peak", of_fma_peak});
  list.push_back({"softmax_backward_2threads_speedup",
                  "one thread's time over two threads', one sequence", two_threads});
}

}  // namespace ratios
