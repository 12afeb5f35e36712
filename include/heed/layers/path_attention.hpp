// PaTHAttention of flash-linear-attention as a layer.
//
//   | official name                                | here                            |
//   |----------------------------------------------|---------------------------------|
//   | q_proj, k_proj, v_proj, o_proj .weight       | query, key, value, output .weight |
//   | maybe_q_norm.weight, maybe_k_norm.weight     | query_norm, key_norm .weight    |
//   | w_proj.weight, or w_proj.0 and .1 .weight    | direction.weight, or direction_down and
//   direction .weight | | w_conv1d.weight, .bias                       | direction_conv.weight,
//   .bias    | | bt_proj.weight, .bias                        | step.weight, .bias              |
//   | g_proj.weight, .bias                         | forget.weight, .bias            |
//
// The forget gate stands inside the scale, as the published layer has it. Its key and query norms
// act in decoding as they do in training (the published layer leaves them out there).
#pragma once

#include <array>

#include "heed/layers/fox_part.hpp"
#include "heed/layers/names.hpp"
#include "heed/layers/path_part.hpp"
#include "heed/multi_head.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
using PathAttention = MultiHeadAttention<T, path_part, fox_part>;

inline constexpr std::array<parameter_name, 15> path_attention_names = {{
    {"q_proj.weight", "query.weight"},
    {"k_proj.weight", "key.weight"},
    {"v_proj.weight", "value.weight"},
    {"o_proj.weight", "output.weight"},
    {"maybe_q_norm.weight", "query_norm.weight"},
    {"maybe_k_norm.weight", "key_norm.weight"},
    {"w_proj.0.weight", "direction_down.weight"},
    {"w_proj.1.weight", "direction.weight", "direction_down.weight"},
    {"w_proj.weight", "direction.weight"},
    {"w_conv1d.weight", "direction_conv.weight"},
    {"w_conv1d.bias", "direction_conv.bias"},
    {"bt_proj.weight", "step.weight"},
    {"bt_proj.bias", "step.bias"},
    {"g_proj.weight", "forget.weight"},
    {"g_proj.bias", "forget.bias"},
}};

// The official arguments; head_dim is model_dim / heads.
struct path_attention_options {
  index model_dim = 0, heads = 0, kv_heads = 0;  // kv_heads 0: as many as heads
  bool low_rank_w = true;                        // of rank 32
  index conv_size = 3;                           // 0: no short convolution
  bool conv_bias = false;
  bool forget_gate = false;
  bool qk_norm = false;
  gate convention = gate::inside_scale;  // where the forget gate stands
};

// Throws shape_error for sizes that make no layer.
template <class T>
PathAttention<T> path_attention(const path_attention_options& o) {
  frame_options frame;
  frame.qk_norm = o.qk_norm;
  const layer_sizes s = layer_sizes{o.model_dim, o.heads, o.kv_heads, 0}.checked();
  const index rank = o.low_rank_w ? 32 : 0;
  return PathAttention<T>(
      layer_frame<T>(s, frame), path_part<T>(s, {rank, o.conv_size, o.conv_bias}),
      fox_part<T>(s, o.forget_gate ? forget_gate::full : forget_gate::none, o.convention));
}

}  // namespace heed::inline HEED_ABI::layers
