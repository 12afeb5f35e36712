#include <cmath>

#include "backward_ratios.hpp"
#include "mechanism_ratios.hpp"

namespace ratios {

namespace {

// log f of -1/64 on average, as a gate that forgets over some 64 tokens.
std::vector<float> gates(index T, index H) {
  std::vector<float> log_f = normal(T * H, 4);
  for (float& x : log_f) x = -std::abs(x) * (1.0F / 64 / 0.79788F);  // mean |x| is 0.798
  return log_f;
}

double fox_against_softmax() {
  problem p(4096, 8, 64);
  const std::vector<float> log_f = gates(p.T, p.Hq);
  return against_softmax(p, heed::fox{p.per_head(log_f)});
}

double pruned_against_fox() {
  problem p(16384, 8, 64);
  const std::vector<float> log_f = gates(p.T, p.Hq);
  const heed::fox exact{p.per_head(log_f)};
  const heed::fox pruned{p.per_head(log_f), heed::gate::outside_scale, heed::pruning{}};
  return time_ratio([&] { p.attend(heed::causal(), pruned); },
                    [&] { p.attend(heed::causal(), exact); }, 5);
}

double fox_backward() {
  backward_problem p(4096, 8, 64);
  const std::vector<float> log_f = gates(p.T, p.Hq);
  std::vector<float> gradient(log_f.size());
  const heed::fox_grad<float> to{{gradient.data(), {1, p.T, p.Hq}}};
  return backward_against_forward(p, heed::with_grad(heed::fox{p.per_head(log_f)}, to));
}

}  // namespace

void add_fox(std::vector<entry>& list) {
  list.push_back(
      {"fox_vs_softmax_t4096", "FoX's time over plain softmax's, unpruned", fox_against_softmax});
  list.push_back({"fox_pruned_vs_fox_t16384",
                  "time with the default pruning over time without, log f = -1/64 on average",
                  pruned_against_fox});
  list.push_back(
      {"fox_backward", "backward's time over forward's, unpruned, T = 4096", fox_backward});
}

}  // namespace ratios
