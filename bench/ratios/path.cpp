#include <cmath>

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
}

}  // namespace ratios
