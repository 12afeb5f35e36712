// MTA in a layer: convolutions and mixes of heads on both sides of the softmax, norm and gate of
// the heads' outputs. What a layer does not have costs nothing.
// Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
#pragma once

#include <tuple>

#include "heed/layers/frame.hpp"
#include "heed/mechanisms/mta.hpp"

namespace heed::inline HEED_ABI::layers {

// Queries and keys that a kernel spans; 0 queries: no kernel.
struct kernel_span {
  index queries = 0, keys = 0;
};
enum class head_gates { none, per_head, per_component };

struct mta_part_options {
  kernel_span logits = {6, 11}, probabilities = {};
  conv_keys side = conv_keys::both;
  bool mix_logits = false, mix_probabilities = false;  // all heads
  index mixed_group = 0;  // heads that mix in groups behind the softmax; 0: none
  bool norm = false;
  double norm_eps = 1e-5, norm_factor = 1;  // 1 - lambda_init(layer) for depth scaling
  head_gates gates = head_gates::none;
};

template <class T>
struct mta_part {
  parameter<T> logits_kernel, probabilities_kernel;  // [heads, 1, queries, keys]
  parameter<T> logits_mix, probabilities_mix;        // [heads out, heads in]
  parameter<T> group_mixes;                          // [heads / group, in, out]
  parameter<T> norm;                                 // [D]
  projection<T> gate;                                // [1|D, D]
  mta_part_options options;
  struct tape {};

  mta_part() = default;
  mta_part(const layer_sizes& s, const mta_part_options& o) : options(o) {
    make_kernel(s, o.logits, logits_kernel);
    make_kernel(s, o.probabilities, probabilities_kernel);
    if (o.mix_logits) make_mix({s.heads, s.heads}, logits_mix);
    if (o.mix_probabilities) make_mix({s.heads, s.heads}, probabilities_mix);
    if (o.mixed_group > 0) {
      if (s.heads % o.mixed_group != 0) {
        throw shape_error("heed: mta_part: mixed_group is " + std::to_string(o.mixed_group) +
                          ", expected a divisor of heads = " + std::to_string(s.heads));
      }
      group_mixes = parameter<T>({s.heads / o.mixed_group, o.mixed_group, o.mixed_group});
      init_identity(group_mixes.template view<3>());
    }
    if (o.norm) norm = parameter<T>({s.head_dim}, 1);
    if (o.gates != head_gates::none) {
      gate = {s.head_dim, o.gates == head_gates::per_head ? 1 : s.head_dim, true};
    }
  }

  // logits_kernel, probabilities_kernel, logits_mix, group_mixes, probabilities_mix,
  // head_norm.weight, head_gate.weight, head_gate.bias.
  void each_parameter(const parameter_visitor<T>& f) {
    visit_parameter(f, "logits_kernel", logits_kernel);
    visit_parameter(f, "probabilities_kernel", probabilities_kernel);
    visit_parameter(f, "logits_mix", logits_mix);
    visit_parameter(f, "group_mixes", group_mixes);
    visit_parameter(f, "probabilities_mix", probabilities_mix);
    visit_parameter(f, "head_norm.weight", norm);
    gate.each_parameter("head_gate", f);
  }
  void check(const layer_sizes&) const {}
  row_history<T> history(index) const { return {}; }
  void forward(const tensor_view<const T, 2>&, token_rows, tape&, const layer_context<T>&,
               history_rows<T>) const {}

  std::tuple<conv<T>, head_mix<T>, after<conv<T>>, after<group_mix<T>>, after<head_mix<T>>,
             head_norm<T>, head_gate<T>>
  mechanisms(const tape&, token_rows) const {
    return {conv<T>{kernel(logits_kernel.template view<4>()), options.side},
            head_mix<T>{logits_mix.template view<2>()},
            after<conv<T>>{{kernel(probabilities_kernel.template view<4>()), options.side}},
            after<group_mix<T>>{{group_mixes.template view<3>()}},
            after<head_mix<T>>{{probabilities_mix.template view<2>()}},
            head_norm<T>{norm.template view<1>(), options.norm_eps, options.norm_factor},
            head_gate<T>{gate.weight.template view<2>(), gate.bias.template view<1>()}};
  }
  auto with_gradients(tape& kept, token_rows rows) {
    each_parameter([](const std::string&, parameter<T>& p) { p.need_gradient(); });
    const auto list = mechanisms(kept, rows);
    return std::tuple(
        with_grad(std::get<0>(list), {kernel(logits_kernel.template gradient_view<4>())}),
        with_grad(std::get<1>(list), {logits_mix.template gradient_view<2>()}),
        with_grad(std::get<2>(list), {kernel(probabilities_kernel.template gradient_view<4>())}),
        with_grad(std::get<3>(list), {group_mixes.template gradient_view<3>()}),
        with_grad(std::get<4>(list), {probabilities_mix.template gradient_view<2>()}),
        with_grad(std::get<5>(list), {norm.template gradient_view<1>()}),
        with_grad(std::get<6>(list), {gate.weight.template gradient_view<2>(),
                                      gate.bias.template gradient_view<1>()}));
  }
  void backward(const tensor_view<const T, 2>&, token_rows, const tensor_view<T, 2>&, tape&,
                const layer_context<T>&) {}

 private:
  void make_kernel(const layer_sizes& s, const kernel_span& span, parameter<T>& p) const {
    if (span.queries == 0) return;
    detail::check_kernel_size("mta_part", 1, span.queries, span.keys, options.side);
    p = parameter<T>({s.heads, 1, span.queries, span.keys});
    for (index h = 0; h < s.heads; ++h) {
      p.template view<4>()(h, 0, span.queries - 1, older_keys(span.keys, options.side)) = T(1);
    }
  }
  static void make_mix(std::vector<index> shape, parameter<T>& p) {
    p = parameter<T>(std::move(shape));
    init_identity(p.template view<2>());
  }
  // [heads, 1, queries, keys] as [heads, queries, keys].
  template <class U>
  static tensor_view<U, 3> kernel(const tensor_view<U, 4>& x) {
    if (x.data() == nullptr) return {};
    return {x.data(), {x.extent(0), x.extent(2), x.extent(3)}};
  }
};

}  // namespace heed::inline HEED_ABI::layers
