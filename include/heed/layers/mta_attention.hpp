// MTA's Attention, of Meta's RAM repository, as a layer.
//
//   | official name                       | here                                  |
//   |-------------------------------------|---------------------------------------|
//   | wq, wk, wv, wo .weight              | query, key, value, output .weight     |
//   | mta_kernel, mta_kernel_after_sm     | logits_kernel, probabilities_kernel   |
//   | wpsm.weight, wposm.weight           | logits_mix, probabilities_mix         |
//   | head_kernel                         | group_mixes                           |
//   | subln.weight                        | head_norm.weight                      |
//   | gate.weight, .bias                  | head_gate.weight, .bias               |
#pragma once

#include <array>

#include "heed/layers/mta_part.hpp"
#include "heed/layers/names.hpp"
#include "heed/layers/rope_part.hpp"
#include "heed/multi_head.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
using MtaAttention = MultiHeadAttention<T, rope_part, mta_part>;

inline constexpr std::array<parameter_name, 12> mta_attention_names = {{
    {"mta_kernel", "logits_kernel"},
    {"mta_kernel_after_sm", "probabilities_kernel"},
    {"head_kernel", "group_mixes"},
    {"wq.weight", "query.weight"},
    {"wk.weight", "key.weight"},
    {"wv.weight", "value.weight"},
    {"wo.weight", "output.weight"},
    {"wpsm.weight", "logits_mix"},
    {"wposm.weight", "probabilities_mix"},
    {"subln.weight", "head_norm.weight"},
    {"gate.weight", "head_gate.weight"},
    {"gate.bias", "head_gate.bias"},
}};

// The official arguments; mta.norm_factor is 1 - lambda_init(layer) for layer_norm_rescale.
struct mta_attention_options {
  index model_dim = 0, heads = 0, kv_heads = 0, head_dim = 0;  // 0: heads; model_dim / heads
  mta_part_options mta = {};
  double rope_theta = 10000;  // 0: no RoPE
};

// Throws shape_error for sizes that make no layer.
template <class T>
MtaAttention<T> mta_attention(const mta_attention_options& o) {
  const layer_sizes s = layer_sizes{o.model_dim, o.heads, o.kv_heads, o.head_dim}.checked();
  const bool turned = o.rope_theta != 0;
  return MtaAttention<T>(
      layer_frame<T>(s, {}),
      rope_part<T>{{.theta = o.rope_theta, .pairs = rope_pairs::interleaved, .on = turned}},
      mta_part<T>(s, o.mta));
}

}  // namespace heed::inline HEED_ABI::layers
