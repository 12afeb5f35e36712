#include "backward_ratios.hpp"
#include "mechanism_ratios.hpp"

namespace ratios {

namespace {

constexpr index positions = 64;

heed::tensor_view<const float, 2> table(const std::vector<float>& embedding, index D) {
  return {embedding.data(), {D, positions}};
}

// Separate gate keys whose logits stand near `logit`: the queries' first component is 1.
double cope_against_softmax(float logit) {
  problem p(4096, 8, 64);
  const std::vector<float> embedding = normal(p.D * positions, 8, 0.1F);
  std::vector<float> gate_keys = normal(p.T * p.Hkv * p.D, 9, 0.1F);
  for (index n = 0; n < p.T * p.Hkv; ++n) {
    gate_keys[static_cast<std::size_t>(n * p.D)] = logit * 8;  // 8 = sqrt(D)
  }
  for (index n = 0; n < p.T * p.Hq; ++n) p.q_data[static_cast<std::size_t>(n * p.D)] = 1;
  const heed::cope<float> mechanism(
      table(embedding, p.D), heed::cope_scale::divided, heed::cope_gates::separate_keys,
      heed::tensor_view<const float, 4>(gate_keys.data(), {1, p.T, p.Hkv, p.D}));
  return against_softmax(p, mechanism);
}

// Gates from the keys: they read the scaled logits, which the queries' and keys' first component
// moves to `logit`.
void move_gates(problem& p, float logit) {
  for (index n = 0; n < p.T * p.Hq; ++n) {
    for (index d = 0; d < p.D; ++d) {
      const auto at = static_cast<std::size_t>(n * p.D + d);
      p.q_data[at] = d == 0 ? 1 : 0.5F * p.q_data[at];
      p.k_data[at] = d == 0 ? logit * 8 : p.k_data[at];
    }
  }
}
double cope_on_keys_against_softmax(float logit) {
  problem p(4096, 8, 64);
  const std::vector<float> embedding = normal(p.D * positions, 8, 0.1F);
  move_gates(p, logit);
  return against_softmax(p, heed::cope<float>(table(embedding, p.D)));
}

double cope_backward(float logit) {
  backward_problem p(4096, 8, 64);
  const std::vector<float> embedding = normal(p.D * positions, 8, 0.1F);
  std::vector<float> gradient(embedding.size());
  move_gates(p, logit);
  heed::cope_grad<float> to;
  to.embedding = heed::tensor_view<float, 2>(gradient.data(), {p.D, positions});
  return backward_against_forward(p, heed::with_grad(heed::cope<float>(table(embedding, p.D)), to));
}

double cope_extra_mb() {
  const index T = 16384, H = 8, D = 64;
  return extra_mb(
      [&] {
        problem p(T, H, D);
        const std::vector<float> embedding = normal(D * positions, 8, 0.1F);
        p.attend(heed::causal(), heed::cope<float>(table(embedding, D)));
      },
      4.0 * 4 * static_cast<double>(T * H * D));
}

}  // namespace

void add_cope(std::vector<entry>& list) {
  list.push_back({"cope_open_vs_softmax",
                  "CoPE's time over plain softmax's, 64 positions, gates near 0.01",
                  [] { return cope_on_keys_against_softmax(-4.6F); }});
  list.push_back({"cope_saturating_vs_softmax", "the same, gates near 0.5",
                  [] { return cope_on_keys_against_softmax(0); }});
  list.push_back({"cope_separate_keys_vs_softmax",
                  "gates near 0.01 from keys of their own: one more product",
                  [] { return cope_against_softmax(-4.6F); }});
  list.push_back({"cope_t16384_extra_mb", "peak resident memory beyond the tensors, 16384 tokens",
                  cope_extra_mb});
  list.push_back({"cope_backward",
                  "backward's time over forward's, 64 positions, gates near 0.01, T = 4096",
                  [] { return cope_backward(-4.6F); }});
  list.push_back(
      {"cope_saturating_backward", "the same, gates near 0.5", [] { return cope_backward(0); }});
}

}  // namespace ratios
