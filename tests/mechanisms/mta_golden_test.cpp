// MTA against the golden cases, in float and double, with the panels heed chooses and with small
// ones.
#include <cmath>
#include <deque>
#include <span>

#include "catch.hpp"
#include "golden.hpp"
#include "heed/attend.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/rope.hpp"

namespace {

using heed_test::golden_case;

template <class T>
class mta_call {
 public:
  explicit mta_call(const golden_case& c) : case_(c) {
    const std::string pad = c.text("pad_key");
    const auto side = pad == "left"    ? heed::conv_keys::left
                      : pad == "right" ? heed::conv_keys::right
                                       : heed::conv_keys::both;
    if (c.has("kernel_pre")) pre = {read<3>("kernel_pre"), side};
    if (c.has("kernel_post")) post = {heed::conv<T>{read<3>("kernel_post"), side}};
    if (c.flag("pre_linear_head")) pre_heads = {read<2>("pre_head_weight")};
    if (c.flag("post_linear_head")) {
      post_heads = {heed::head_mix<T>{read<2>("post_head_weight")}};
    }
    if (c.has("head_kernel_size")) groups = {heed::group_mix<T>{read<3>("head_kernel")}};
    if (c.flag("group_norm")) {
      norm = {read<1>("norm_weight"), c.real("norm_eps")};
      if (c.flag("layer_norm_rescale")) norm.factor = 1 - heed::lambda_init(c.integer("layer_id"));
    }
    if (c.has("gating")) gate = {read<2>("gate_weight"), read<1>("gate_bias")};
  }

  // The largest error over the largest expected value.
  double error(const heed::tuning& tuning) {
    const auto q = read<4>("q"), k = read<4>("k"), v = read<4>("v");
    const auto expected = case_.tensor<double>("out");
    const auto e = expected.template view<double, 4>();
    std::vector<T> out(static_cast<std::size_t>(e.size()));
    const heed::tensor_view<T, 4> o(out.data(), e.extents());
    heed::attend_options<T> options;
    options.scale = case_.real("scale");
    options.tuning = tuning;
    if (case_.flag("causal")) options.mask = heed::causal();
    if (case_.has("rope_theta")) {
      heed::attend(q, k, v, o, options,
                   heed::rope{case_.real("rope_theta"), heed::rope_pairs::interleaved}, pre,
                   pre_heads, post, groups, post_heads, norm, gate);
    } else {
      heed::attend(q, k, v, o, options, pre, pre_heads, post, groups, post_heads, norm, gate);
    }
    double worst = 0, largest = 0;
    const std::span<const double> right = expected.template values<double>();
    for (std::size_t n = 0; n < right.size(); ++n) {
      const double difference = std::abs(static_cast<double>(out[n]) - right[n]);
      worst = difference <= worst ? worst : difference;  // NaN counts
      largest = std::max(largest, std::abs(right[n]));
    }
    return worst / largest;
  }

 private:
  template <int Rank>
  heed::tensor_view<const T, Rank> read(const std::string& name) {
    tensors_.push_back(case_.tensor<T>(name));
    return tensors_.back().template view<T, Rank>();
  }

  const golden_case& case_;
  std::deque<heed::io::npy_array> tensors_;
  heed::conv<T> pre = {};
  heed::head_mix<T> pre_heads = {};
  heed::after<heed::conv<T>> post = {};
  heed::after<heed::group_mix<T>> groups = {};
  heed::after<heed::head_mix<T>> post_heads = {};
  heed::head_norm<T> norm = {};
  heed::head_gate<T> gate = {};
};

template <class T>
void check_all(double tolerance) {
  for (const golden_case& c : heed_test::golden_cases("mta_")) {
    for (const heed::tuning& t : {heed::tuning{}, heed::tuning{3, 3}, heed::tuning{16, 64}}) {
      CAPTURE(c.name(), t.rows, t.panel);
      CHECK(mta_call<T>(c).error(t) <= tolerance);
    }
  }
}

}  // namespace

TEST_CASE("MTA in double agrees with the published code") {
  check_all<double>(1e-12);
}
TEST_CASE("MTA in float agrees with the published code") {
  check_all<float>(5e-6);
}
