// ForgettingAttentionLayer of forgetting-transformer as a layer; with qk_norm, key_shift,
// value_shift, output_gate and output_norm it is the paper's "Pro" block.
//
//   | official name                                         | here                          |
//   |-------------------------------------------------------|-------------------------------|
//   | q_proj.weight, o_proj.weight                          | query.weight, output.weight   |
//   | k_proj.weight, or k_proj.linear and .shift_proj .weight | key.weight, or key and key_shift
//   .weight | | v_proj alike                                          | value, value_shift | |
//   q_norm.weight, k_norm.weight                          | query_norm, key_norm .weight  | |
//   fgate_proj.weight, .bias                              | forget.weight, .bias          | |
//   fgate_bias (bias_only; a buffer when fixed)           | forget.bias                   | |
//   ogate_proj.weight                                     | output_gate.weight            | |
//   output_norm.weight                                    | output_norm.weight            |
//
// Later chunks of several tokens go on from the shift's state (the published layer forgets it).
#pragma once

#include <array>

#include "heed/layers/forgetting_attention.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
using ForgettingAttentionLayer = ForgettingAttention<T>;

inline constexpr std::array<parameter_name, 15> forgetting_attention_layer_names = {{
    {"q_proj.weight", "query.weight"},
    {"k_proj.linear.weight", "key.weight", "key_shift.weight"},
    {"k_proj.weight", "key.weight"},
    {"k_proj.shift_proj.weight", "key_shift.weight"},
    {"v_proj.linear.weight", "value.weight", "value_shift.weight"},
    {"v_proj.weight", "value.weight"},
    {"v_proj.shift_proj.weight", "value_shift.weight"},
    {"o_proj.weight", "output.weight"},
    {"q_norm.weight", "query_norm.weight"},
    {"k_norm.weight", "key_norm.weight"},
    {"fgate_proj.weight", "forget.weight"},
    {"fgate_proj.bias", "forget.bias", "forget.weight"},
    {"fgate_bias", "forget.bias"},
    {"ogate_proj.weight", "output_gate.weight"},
    {"output_norm.weight", "output_norm.weight"},
}};

// The official arguments; head_dim is model_dim / heads.
struct forgetting_attention_layer_options {
  index model_dim = 0, heads = 0;
  forget_gate gates = forget_gate::full;
  double shortest_decay = 1, longest_decay = 1;  // tokens, of the first and the last head: fixed
  bool qk_norm = false, qk_norm_shared = false;  // shared: one weight for all heads
  bool key_shift = false, value_shift = false;
  bool output_gate = false;
  gate_activation activation = gate_activation::sigmoid;
  bool output_norm = false;
  double output_norm_eps = 1e-6;  // of the output norm alone; those of q and k have 1e-5
  bool rope = false;
  double rope_base = 500000;
};

// Throws shape_error for sizes that make no layer, and for an output norm with a SiLU gate, which
// the published layer does not know.
template <class T>
ForgettingAttentionLayer<T> forgetting_attention_layer(
    const forgetting_attention_layer_options& o) {
  if (o.output_norm && o.output_gate && o.activation != gate_activation::sigmoid) {
    throw shape_error(
        "heed: forgetting_attention_layer: an output norm goes with a sigmoid gate only");
  }
  frame_options frame;
  frame.qk_norm = o.qk_norm;
  frame.qk_norm_weight = o.qk_norm_shared ? norm_weight::shared : norm_weight::per_head;
  frame.key_shift = o.key_shift;
  frame.value_shift = o.value_shift;
  frame.output_gate = o.output_gate;
  frame.activation = o.activation;
  frame.output_norm = o.output_norm;
  frame.output_norm_eps = o.output_norm_eps;
  const layer_sizes s = layer_sizes{o.model_dim, o.heads, 0, 0}.checked();
  fox_part<T> gates(s, o.gates);
  if (o.gates == forget_gate::fixed) {
    const auto logits = fixed_gate_logits(s.heads, o.shortest_decay, o.longest_decay);
    for (std::size_t h = 0; h < logits.size(); ++h) {
      gates.bias.value[h] = static_cast<T>(logits[h]);
    }
  }
  return ForgettingAttentionLayer<T>(
      layer_frame<T>(s, frame),
      rope_part<T>{{.theta = o.rope_base, .pairs = rope_pairs::half, .on = o.rope}},
      std::move(gates));
}

}  // namespace heed::inline HEED_ABI::layers
