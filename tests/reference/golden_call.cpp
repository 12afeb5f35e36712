#include "reference/golden_call.hpp"

#include <algorithm>
#include <cmath>

#include "catch.hpp"

namespace heed_test {

golden_call::golden_call(const golden_case& from, std::optional<std::array<heed::index, 2>> rows)
    : case_(from), rows_(rows) {
  options.scale = from.real("scale");
  if (from.flag("causal")) options.mask = heed::causal();
  if (from.has("window_size")) {
    options.mask = options.mask.window(from.integer("window_size") - 1, 0);
  }
  add_mechanisms();
}

std::vector<double> golden_call::run() {
  const auto q = rows_ ? tensor<4>("q").slice(1, (*rows_)[0], (*rows_)[1]) : tensor<4>("q");
  const auto v = keyed<4>("v");
  std::vector<double> out(static_cast<std::size_t>(q.size() / q.extent(3) * v.extent(3)));
  heed::reference::attend<double>(
      q, keyed<4>("k"), v,
      heed::tensor_view<double, 4>(out, {q.extent(0), q.extent(1), q.extent(2), v.extent(3)}),
      options, list);
  return out;
}

double golden_call::error() {
  const auto expected = tensor<4>("out");
  const std::vector<double> out = run();
  const heed::index first = rows_ ? (*rows_)[0] : 0;
  const heed::index last = rows_ ? (*rows_)[1] : expected.extent(1);
  double worst = 0, largest = 0;
  std::size_t n = 0;
  for (heed::index b = 0; b < expected.extent(0); ++b)
    for (heed::index i = first; i < last; ++i)
      for (heed::index h = 0; h < expected.extent(2); ++h)
        for (heed::index c = 0; c < expected.extent(3); ++c) {
          const double difference = std::abs(out[n++] - expected(b, i, h, c));
          worst = difference <= worst ? worst : difference;  // NaN counts
        }
  for (const double x : arrays_.at("out").values<double>())
    largest = std::max(largest, std::abs(x));
  return worst / largest;
}

void golden_call::add_mechanisms() {
  const std::string mechanism = case_.text("mechanism");
  if (mechanism == "mta") return add_mta();
  if (case_.has("rope_theta")) {
    list.add(heed::rope{
        case_.real("rope_theta"),
        case_.text("rope_style") == "half" ? heed::rope_pairs::half : heed::rope_pairs::interleaved,
        case_.integer("rotary_dim"), case_.integer("rope_offset")});
  }
  if (mechanism == "alibi") list.add(heed::alibi{});
  if (mechanism == "cope") add_cope();
  if (mechanism == "rel" || case_.flag("rel")) {
    list.add(heed::relative{tensor<2>("rel_emb"), case_.flag("rel_extend")});
  }
  if (mechanism == "path") list.add(heed::path{keyed<4>("w"), keyed<3>("beta")});
  if (case_.has_tensor("g")) {
    const bool inside = case_.has("gate") && case_.text("gate") == "inside_scale";
    list.add(
        heed::fox{keyed<3>("g"), inside ? heed::gate::inside_scale : heed::gate::outside_scale});
  }
}

void golden_call::add_cope() {
  const auto scale = case_.flag("nodiv") ? heed::cope_scale::undivided : heed::cope_scale::divided;
  heed::cope<double> m;
  if (case_.flag("per_head_pos_emb")) {
    m = heed::cope{tensor<3>("pos_emb"), scale};
  } else {
    m = heed::cope{tensor<2>("pos_emb"), scale};
  }
  if (case_.flag("sep_key")) {
    m.gates = heed::cope_gates::separate_keys;
    m.gate_keys = keyed<4>("key_cope");
  }
  if (case_.flag("val_gates")) m.gates = heed::cope_gates::values;
  list.add(m);
}

void golden_call::add_mta() {
  const std::string pad = case_.text("pad_key");
  const auto side = pad == "left"    ? heed::conv_keys::left
                    : pad == "right" ? heed::conv_keys::right
                                     : heed::conv_keys::both;
  if (case_.has("rope_theta")) {
    list.add(heed::rope{case_.real("rope_theta"), heed::rope_pairs::interleaved});
  }
  if (case_.has("kernel_pre")) list.add(heed::conv{tensor<3>("kernel_pre"), side});
  if (case_.flag("pre_linear_head")) list.add(heed::head_mix{tensor<2>("pre_head_weight")});
  if (case_.has("kernel_post")) {
    list.add(heed::after{heed::conv{tensor<3>("kernel_post"), side}});
  }
  if (case_.has("head_kernel_size")) {
    list.add(heed::after{heed::group_mix{tensor<3>("head_kernel")}});
  }
  if (case_.flag("post_linear_head")) {
    list.add(heed::after{heed::head_mix{tensor<2>("post_head_weight")}});
  }
  if (case_.flag("group_norm")) {
    const double factor =
        case_.flag("layer_norm_rescale") ? 1 - heed::lambda_init(case_.integer("layer_id")) : 1;
    list.add(heed::head_norm{tensor<1>("norm_weight"), case_.real("norm_eps"), factor});
  }
  if (case_.has("gating")) {
    list.add(heed::head_gate{tensor<2>("gate_weight"), tensor<1>("gate_bias")});
  }
}

void check_golden(const std::string& prefix) {
  for (const golden_case& one : golden_cases(prefix)) {
    CAPTURE(one.name());
    // What the stored values of the resets cases hold to.
    const double tolerance = one.name_contains("resets") ? 1e-11 : 1e-13;
    CHECK(golden_call(one).error() <= tolerance);
    if (!one.has("decode_prefill") || prefix == "mta_") continue;
    const heed::index prefill = one.integer("decode_prefill");
    CHECK(golden_call(one, {{0, prefill}}).error() <= tolerance);
    for (heed::index i = prefill; i < one.integer("T"); ++i) {
      CHECK(golden_call(one, {{i, i + 1}}).error() <= tolerance);
    }
  }
}

}  // namespace heed_test
