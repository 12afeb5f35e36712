#include "heed/attend_grad.hpp"
#include "mechanism_ratios.hpp"

namespace ratios {

namespace {

// A causal self-attention call with everything that its gradients need.
struct backward_problem : problem {
  std::vector<float> lse, dout, dq, dk, dv;
  heed::workspace backward_workspace;

  backward_problem(index tokens, index heads, index head_size)
      : problem(tokens, heads, head_size),
        lse(static_cast<std::size_t>(tokens * heads)),
        dout(normal(tokens * heads * head_size, 5)),
        dq(dout.size()),
        dk(dout.size()),
        dv(dout.size()) {}

  heed::tensor_view<float, 4> like_q(std::vector<float>& data) const {
    return {data.data(), {1, T, Hq, D}};
  }
  heed::tensor_view<float, 3> log_sums() { return {lse.data(), {1, T, Hq}}; }

  template <class... Mechanisms>
  void forward(const Mechanisms&... mechanisms) {
    heed::attend(q(), k(), v(), out(),
                 {.mask = heed::causal(), .lse = log_sums(), .workspace = &workspace},
                 mechanisms...);
  }
  template <class... Mechanisms>
  void backward(heed::executor_ref executor, const Mechanisms&... mechanisms) {
    heed::attend_grad(
        q(), k(), v(), out(), log_sums(), like_q(dout),
        {.q = like_q(dq), .k = like_q(dk), .v = like_q(dv)},
        {.mask = heed::causal(), .executor = executor, .workspace = &backward_workspace},
        mechanisms...);
  }
};

// Backward's time over forward's of the same mechanism.
template <class... Mechanisms>
double backward_against_forward(backward_problem& p, const Mechanisms&... mechanisms) {
  p.forward(mechanisms...);
  return time_ratio([&] { p.backward({}, mechanisms...); }, [&] { p.forward(mechanisms...); }, 7);
}

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
