#include "backward_ratios.hpp"
#include "mechanism_ratios.hpp"

namespace ratios {

namespace {

constexpr index cq = 6, ck = 11;

// Random kernels and head matrices. Their values do not change what a call costs.
struct mta_parameters {
  index H;
  std::vector<float> before, after, pairs, matrix_before, matrix_after, norm, gate, gate_bias;

  explicit mta_parameters(const problem& p)
      : H(p.Hq),
        before(normal(H * cq * ck, 10, 0.3F)),
        after(normal(H * cq * ck, 11, 0.3F)),
        pairs(normal(H * 2, 12)),
        matrix_before(normal(H * H, 13, 0.3F)),
        matrix_after(normal(H * H, 14, 0.3F)),
        norm(normal(p.D, 15)),
        gate(normal(p.D, 16)),
        gate_bias(normal(1, 17)) {}

  heed::conv<float> conv_before() const { return {.kernel = {before.data(), {H, cq, ck}}}; }
  heed::after<heed::conv<float>> conv_after() const {
    return {heed::conv<float>{.kernel = {after.data(), {H, cq, ck}}}};
  }
  heed::after<heed::group_mix<float>> pairs_after() const {
    return {heed::group_mix<float>{{pairs.data(), {H / 2, 2, 2}}}};
  }
};

double kq() {
  problem p(4096, 8, 64);
  const mta_parameters m(p);
  return against_softmax(p, m.conv_before());
}
double kq_post() {
  problem p(4096, 8, 64);
  const mta_parameters m(p);
  return time_ratio([&] { p.attend(heed::causal(), m.conv_before(), m.conv_after()); },
                    [&] { p.attend(heed::causal()); }, 7);
}
double kq_backward() {
  backward_problem p(4096, 8, 64);
  const mta_parameters m(p);
  std::vector<float> gradient(m.before.size());
  return backward_against_forward(
      p, heed::with_grad(m.conv_before(), {{gradient.data(), {p.Hq, cq, ck}}}));
}
double head_mix() {
  problem p(4096, 8, 64);
  const mta_parameters m(p);
  return against_softmax(p, m.pairs_after());
}

// The large published configuration: both convolutions, 16 x 16 mixes on both sides, norm, gate.
void attend_full(problem& p) {
  const mta_parameters m(p);
  const heed::head_mix<float> mix_before{{m.matrix_before.data(), {p.Hq, p.Hq}}};
  const heed::after<heed::head_mix<float>> mix_after{
      heed::head_mix<float>{{m.matrix_after.data(), {p.Hq, p.Hq}}}};
  const heed::head_norm<float> norm{.weight = {m.norm.data(), {p.D}}};
  const heed::head_gate<float> gate{.weight = {m.gate.data(), {1, p.D}},
                                    .bias = {m.gate_bias.data(), {1}}};
  p.attend(heed::causal(), m.conv_before(), mix_before, m.conv_after(), mix_after, norm, gate);
}
double full() {
  problem p(4096, 16, 64);
  return time_ratio([&] { attend_full(p); }, [&] { p.attend(heed::causal()); }, 5);
}
double full_extra_mb() {
  const index T = 16384, H = 16, D = 64;
  return extra_mb(
      [&] {
        problem p(T, H, D);
        attend_full(p);
      },
      4.0 * 4 * static_cast<double>(T * H * D));
}

}  // namespace

void add_mta(std::vector<entry>& list) {
  list.push_back(
      {"mta_kq_vs_softmax", "a 6 x 11 convolution before softmax, over plain softmax", kq});
  list.push_back({"mta_kq_post_vs_softmax", "6 x 11 before and after softmax", kq_post});
  list.push_back({"mta_head_mix_vs_softmax", "heads mixed in pairs after softmax", head_mix});
  list.push_back(
      {"mta_full_vs_softmax", "16 heads, 6 x 11 and 16 x 16 before and after, norm, gate", full});
  list.push_back({"mta_full_t16384_extra_mb",
                  "peak resident memory beyond the tensors, 16384 tokens", full_extra_mb});
  list.push_back({"mta_kq_backward",
                  "backward's time over forward's, 6 x 11 before softmax, T = 4096", kq_backward});
}

}  // namespace ratios
