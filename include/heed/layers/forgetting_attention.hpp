// ForgettingAttention of flash-linear-attention as a layer.
//
//   | official name                            | here                              |
//   |------------------------------------------|-----------------------------------|
//   | q_proj, k_proj, v_proj .weight, .bias    | query, key, value .weight, .bias  |
//   | q_norm.weight, k_norm.weight             | query_norm, key_norm .weight      |
//   | f_proj.weight, .bias                     | forget.weight, .bias              |
//   | g_proj.weight                            | output_gate.weight                |
//   | o_proj.weight                            | output.weight                     |
//
// The official argument window_size has no effect on the attention; a window is an option of the
// call here.
#pragma once

#include <array>

#include "heed/layers/fox_part.hpp"
#include "heed/layers/names.hpp"
#include "heed/layers/rope_part.hpp"
#include "heed/multi_head.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
using ForgettingAttention = MultiHeadAttention<T, rope_part, fox_part>;

inline constexpr std::array<parameter_name, 12> forgetting_attention_names = {{
    {"q_proj.weight", "query.weight"},
    {"q_proj.bias", "query.bias"},
    {"k_proj.weight", "key.weight"},
    {"k_proj.bias", "key.bias"},
    {"v_proj.weight", "value.weight"},
    {"v_proj.bias", "value.bias"},
    {"q_norm.weight", "query_norm.weight"},
    {"k_norm.weight", "key_norm.weight"},
    {"f_proj.weight", "forget.weight"},
    {"f_proj.bias", "forget.bias"},
    {"g_proj.weight", "output_gate.weight"},
    {"o_proj.weight", "output.weight"},
}};

// The official arguments; head_dim is model_dim / heads.
struct forgetting_attention_options {
  index model_dim = 0, heads = 0, kv_heads = 0;  // kv_heads 0: as many as heads
  bool qkv_bias = false;
  bool qk_norm = false;  // a weight for each head
  bool output_gate = false;
};

// Throws shape_error for sizes that make no layer.
template <class T>
ForgettingAttention<T> forgetting_attention(const forgetting_attention_options& o) {
  frame_options frame;
  frame.qkv_bias = o.qkv_bias;
  frame.qk_norm = o.qk_norm;
  frame.qk_norm_weight = norm_weight::per_head;
  frame.output_gate = o.output_gate;
  const layer_sizes s = layer_sizes{o.model_dim, o.heads, o.kv_heads, 0}.checked();
  return ForgettingAttention<T>(layer_frame<T>(s, frame), rope_part<T>{{.on = false}},
                                fox_part<T>(s, forget_gate::full));
}

}  // namespace heed::inline HEED_ABI::layers
