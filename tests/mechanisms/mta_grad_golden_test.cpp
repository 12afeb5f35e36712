// The gradients of MTA against those of the published code: kernels, mixes, norm, gate, q, k, v.
#include "gradient_golden.hpp"

namespace {

// All stages in MTA's order; those that a case does not have are not there.
template <class T>
auto mta_list(heed_test::golden_gradient_call<T>& call) {
  const heed_test::golden_case& c = call.from;
  const std::string pad = c.text("pad_key");
  const auto side = pad == "left"    ? heed::conv_keys::left
                    : pad == "right" ? heed::conv_keys::right
                                     : heed::conv_keys::both;
  heed::conv<T> pre, post;
  heed::head_mix<T> pre_heads, post_heads;
  heed::group_mix<T> groups;
  heed::head_norm<T> norm;
  heed::head_gate<T> gate;
  heed::conv_grad<T> d_pre, d_post;
  heed::head_mix_grad<T> d_pre_heads, d_post_heads;
  heed::group_mix_grad<T> d_groups;
  heed::head_norm_grad<T> d_norm;
  heed::head_gate_grad<T> d_gate;
  if (c.has("kernel_pre")) {
    pre = {call.template tensor<3>("kernel_pre"), side};
    d_pre = {call.template gradient<3>("kernel_pre")};
  }
  if (c.has("kernel_post")) {
    post = {call.template tensor<3>("kernel_post"), side};
    d_post = {call.template gradient<3>("kernel_post")};
  }
  if (c.flag("pre_linear_head")) {
    pre_heads = {call.template tensor<2>("pre_head_weight")};
    d_pre_heads = {call.template gradient<2>("pre_head_weight")};
  }
  if (c.flag("post_linear_head")) {
    post_heads = {call.template tensor<2>("post_head_weight")};
    d_post_heads = {call.template gradient<2>("post_head_weight")};
  }
  if (c.has("head_kernel_size")) {
    groups = {call.template tensor<3>("head_kernel")};
    d_groups = {call.template gradient<3>("head_kernel")};
  }
  if (c.flag("group_norm")) {
    norm = {call.template tensor<1>("norm_weight"), c.real("norm_eps")};
    if (c.flag("layer_norm_rescale")) norm.factor = 1 - heed::lambda_init(c.integer("layer_id"));
    d_norm = {call.template gradient<1>("norm_weight")};
  }
  if (c.has("gating")) {
    gate = {call.template tensor<2>("gate_weight"), call.template tensor<1>("gate_bias")};
    d_gate = {call.template gradient<2>("gate_weight"), call.template gradient<1>("gate_bias")};
  }
  return std::tuple(heed::with_grad(pre, d_pre), heed::with_grad(pre_heads, d_pre_heads),
                    heed::with_grad(heed::after{post}, d_post),
                    heed::with_grad(heed::after{groups}, d_groups),
                    heed::with_grad(heed::after{post_heads}, d_post_heads),
                    heed::with_grad(norm, d_norm), heed::with_grad(gate, d_gate));
}

// Whether the case turns q and k; its list begins with RoPE then.
bool turns(const heed_test::golden_case& c) {
  return c.has("rope_theta");
}

template <class T>
double error_of(const heed_test::golden_case& one, const heed::tuning& sizes, double negligible) {
  heed_test::golden_gradient_call<T> call(one);
  if (turns(one)) {
    const heed::rope rope{one.real("rope_theta"), heed::rope_pairs::interleaved};
    call.run(sizes, std::tuple_cat(std::tuple(rope), mta_list(call)));
  } else {
    call.run(sizes, mta_list(call));
  }
  return call.error(negligible);
}

template <class T>
void check_all(double tolerance, double negligible) {
  for (const heed_test::golden_case& one : heed_test::golden_cases("mta_")) {
    for (const heed::tuning& sizes : {heed::tuning{}, heed::tuning{5, 7}, heed::tuning{16, 64}}) {
      CAPTURE(one.name(), sizes.rows, sizes.panel);
      CHECK(error_of<T>(one, sizes, negligible) <= tolerance);
    }
  }
}

}  // namespace

TEST_CASE("Golden gradients of MTA in double") {
  check_all<double>(1e-10, 1e-13);
}
// Where a norm comes before a gate per head, the gradient of the gate's bias is a sum of hundreds
// of terms that nearly cancel, and a hundredth of the others: what is left of a rounding of the
// output is near 2e-5 of it, on either side with other vectors.
TEST_CASE("Golden gradients of MTA in float") {
  check_all<float>(2.5e-5, 1e-6);
}
