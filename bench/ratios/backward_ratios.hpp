// A mechanism's backward over its own forward.
#pragma once

#include "heed/attend_grad.hpp"
#include "ratios.hpp"

namespace ratios {

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
  double tensor_bytes() const {
    return problem::tensor_bytes() + 4.0 * static_cast<double>(lse.size() + 4 * dout.size());
  }

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

// Backward's time over forward's of the same mechanism: all gradients, one thread, in turns.
template <class... Mechanisms>
double backward_against_forward(backward_problem& p, const Mechanisms&... mechanisms) {
  p.forward(mechanisms...);
  return time_ratio([&] { p.backward({}, mechanisms...); }, [&] { p.forward(mechanisms...); }, 7);
}

}  // namespace ratios
