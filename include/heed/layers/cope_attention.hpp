// CoPE's MultiHeadAttn around ContextPosSelfAttn, of Meta's RAM repository, as a layer.
//
//   | official name                                | here                                   |
//   |----------------------------------------------|----------------------------------------|
//   | proj_query, proj_key, proj_val, proj_out .weight, .bias | query, key, value, output .weight,
//   .bias | | proj_key_cope.weight, .bias                  | gate_key.weight, .bias | |
//   attn.pos_emb                                 | positions                              | |
//   attn.rel_pos_emb.emb                         | distances                              |
#pragma once

#include <array>

#include "heed/layers/cope_part.hpp"
#include "heed/layers/names.hpp"
#include "heed/layers/rope_part.hpp"
#include "heed/multi_head.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
using CopeAttention = MultiHeadAttention<T, rope_part, cope_part>;

inline constexpr std::array<parameter_name, 12> cope_attention_names = {{
    {"attn.pos_emb", "positions"},
    {"attn.rel_pos_emb.emb", "distances"},
    {"proj_key_cope.weight", "gate_key.weight"},
    {"proj_key_cope.bias", "gate_key.bias"},
    {"proj_query.weight", "query.weight"},
    {"proj_query.bias", "query.bias"},
    {"proj_key.weight", "key.weight"},
    {"proj_key.bias", "key.bias"},
    {"proj_val.weight", "value.weight"},
    {"proj_val.bias", "value.bias"},
    {"proj_out.weight", "output.weight"},
    {"proj_out.bias", "output.bias"},
}};

// The official arguments. cope.positions is cope_npos, or block_size + 1 where that is not given;
// cope.scale is undivided for cope_nodiv.
struct cope_attention_options {
  index model_dim = 0, heads = 0, head_dim = 0;  // head_dim 0: model_dim / heads
  cope_part_options cope = {};
  heed::rope rope = {.on = false};  // not of the published layer; before CoPE
};

// Throws shape_error for sizes that make no layer.
template <class T>
CopeAttention<T> cope_attention(const cope_attention_options& o) {
  frame_options frame;
  frame.qkv_bias = frame.output_bias = true;
  const layer_sizes s = layer_sizes{o.model_dim, o.heads, 0, o.head_dim}.checked();
  return CopeAttention<T>(layer_frame<T>(s, frame), rope_part<T>{o.rope}, cope_part<T>(s, o.cope));
}

}  // namespace heed::inline HEED_ABI::layers
