#include <cmath>

#include "backward_ratios.hpp"
#include "heed/reference/attend.hpp"
#include "mechanism_ratios.hpp"

namespace ratios {

namespace {

// Directions of length 1 and betas in (0, 2), as PaTH's layer makes them.
struct path_parameters {
  std::vector<float> w, beta, log_f;

  explicit path_parameters(const problem& p)
      : w(normal(p.T * p.Hkv * p.D, 5)),
        beta(normal(p.T * p.Hkv, 6)),
        log_f(normal(p.T * p.Hq, 7)) {
    const heed::tensor_view<float, 4> directions(w.data(), {1, p.T, p.Hkv, p.D});
    heed::path_directions(directions, directions);
    const heed::tensor_view<float, 3> betas(beta.data(), {1, p.T, p.Hkv});
    heed::path_betas(betas, betas);
    for (float& x : log_f) x = -std::abs(x) * (1.0F / 64 / 0.79788F);
  }
  heed::path<float> mechanism(const problem& p) const {
    return {.w = {w.data(), {1, p.T, p.Hkv, p.D}}, .beta = {beta.data(), {1, p.T, p.Hkv}}};
  }
};

// The same, with places for the gradients.
struct path_gradients : path_parameters {
  std::vector<float> dw, dbeta, dlog_f;

  explicit path_gradients(const problem& p)
      : path_parameters(p), dw(w.size()), dbeta(beta.size()), dlog_f(log_f.size()) {}
  auto path(const problem& p) {
    return heed::with_grad(mechanism(p),
                           {{dw.data(), {1, p.T, p.Hkv, p.D}}, {dbeta.data(), {1, p.T, p.Hkv}}});
  }
  auto fox(const problem& p) {
    return heed::with_grad(heed::fox{p.per_head(log_f)}, {{dlog_f.data(), {1, p.T, p.Hq}}});
  }
};

double path_against_softmax(index T) {
  problem p(T, 8, 64);
  const path_parameters parameters(p);
  return against_softmax(p, parameters.mechanism(p));
}

double path_fox_against_softmax() {
  problem p(4096, 8, 64);
  const path_parameters parameters(p);
  return against_softmax(p, parameters.mechanism(p), heed::fox{p.per_head(parameters.log_f)});
}

// The reference carries every key past every token, one head after the other: one head is measured.
double reference_against_path() {
  problem p(4096, 1, 64);
  const path_parameters parameters(p);
  const auto mechanism = parameters.mechanism(p);
  return time_ratio(
      [&] {
        heed::reference::attend(p.q(), p.k(), p.v(), p.out(), {.mask = heed::causal()}, mechanism);
      },
      [&] { p.attend(heed::causal(), mechanism); }, 1);
}

double path_backward() {
  backward_problem p(4096, 8, 64);
  path_gradients gradients(p);
  return backward_against_forward(p, gradients.path(p));
}
double path_fox_backward_extra_mb() {
  const auto call = [] {
    backward_problem p(16384, 8, 64);
    path_gradients gradients(p);
    p.forward(gradients.path(p), gradients.fox(p));
    p.backward({}, gradients.path(p), gradients.fox(p));
  };
  // q, k, v, out, dout, w and the gradients of all but out and dout; lse, beta and gates.
  const double tokens = 16384.0 * 8;
  return extra_mb(call, 4 * tokens * (10 * 64 + 5));
}

}  // namespace

void add_path(std::vector<entry>& list) {
  list.push_back({"path_vs_softmax_t4096", "PaTH's time over plain softmax's",
                  [] { return path_against_softmax(4096); }});
  list.push_back({"path_vs_softmax_t1024", "the same, 1024 tokens",
                  [] { return path_against_softmax(1024); }});
  list.push_back({"path_fox_vs_softmax_t4096", "PaTH-FoX's time over plain softmax's",
                  path_fox_against_softmax});
  list.push_back({"path_vs_reference_t4096", "time of the token-by-token reference over PaTH's",
                  reference_against_path});
  list.push_back({"path_backward", "backward's time over forward's, T = 4096", path_backward});
  list.push_back({"path_fox_backward_extra_mb",
                  "peak resident memory beyond the tensors, forward and backward, 16384 tokens",
                  path_fox_backward_extra_mb});
}

}  // namespace ratios
