// The published layers as plain loops: the same options and official parameter names as the layers
// of heed/layers/*_attention*.hpp. Each maps x [B, T, model_dim] to y.
#pragma once

#include "heed/layers/cope_attention.hpp"
#include "heed/layers/forgetting_attention_layer.hpp"
#include "heed/layers/mta_attention.hpp"
#include "heed/layers/path_attention.hpp"
#include "heed/reference/layer_parts.hpp"

namespace heed::inline HEED_ABI::reference {

namespace detail {

template <class T>
const layer_tensor<T>* find(const layer_tensors<T>& p, const std::string& name) {
  const auto found = p.find(name);
  return found != p.end() ? &found->second : nullptr;
}
// A tensor's view; without data where the layer does not have it.
template <int Rank, class T>
tensor_view<const T, Rank> view(const layer_tensors<T>& p, const std::string& name) {
  const layer_tensor<T>* tensor = find(p, name);
  if (tensor == nullptr) return {};
  shape<Rank> e{};
  // Axes of extent 1 that the mechanism does not have are left out.
  std::size_t skip = tensor->shape.size() - static_cast<std::size_t>(Rank), axis = 0;
  for (const index extent : tensor->shape) {
    if (extent == 1 && skip > 0) {
      --skip;
      continue;
    }
    e[axis++] = extent;
  }
  return {tensor->values.data(), e};
}
template <class T>
T log_logistic(T x) {
  return -std::log1p(std::exp(-x));
}

}  // namespace detail

// PaTHAttention.
template <class T>
void path_attention(const layers::path_attention_options& o, const layer_tensors<T>& p,
                    const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y) {
  const index heads = o.heads, kv_heads = o.kv_heads > 0 ? o.kv_heads : o.heads;
  const auto Hq = static_cast<std::size_t>(heads), Hkv = static_cast<std::size_t>(kv_heads);
  each_sequence(x, y, [&](const token_list<T>& in) {
    token_list<T> q = linear(in, p, "q_proj"), k = linear(in, p, "k_proj");
    if (o.qk_norm) {
      q = head_rms_norm(q, Hq, p.at("maybe_q_norm.weight"), 1e-5);
      k = head_rms_norm(k, Hkv, p.at("maybe_k_norm.weight"), 1e-5);
    }
    token_list<T> w =
        o.low_rank_w ? linear(linear(in, p, "w_proj.0"), p, "w_proj.1") : linear(in, p, "w_proj");
    if (o.conv_size > 0) {
      w = short_conv(w, p.at("w_conv1d.weight"), detail::find(p, "w_conv1d.bias"));
    }
    const flat_tokens<T> directions(head_directions(w, Hkv, 1e-6));
    const flat_tokens<T> beta(each(linear(in, p, "bt_proj"), [](T z) { return 2 * logistic(z); }));
    const path<T> transforms{directions.heads(kv_heads), beta.per_head()};
    const token_list<T> v = linear(in, p, "v_proj");
    if (!o.forget_gate) {
      return linear(attention(q, k, v, heads, kv_heads, transforms), p, "o_proj");
    }
    const flat_tokens<T> gates(each(linear(in, p, "g_proj"), detail::log_logistic<T>));
    return linear(
        attention(q, k, v, heads, kv_heads, transforms, fox<T>{gates.per_head(), o.convention}), p,
        "o_proj");
  });
}

// ForgettingAttention.
template <class T>
void forgetting_attention(const layers::forgetting_attention_options& o, const layer_tensors<T>& p,
                          const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y) {
  const index heads = o.heads, kv_heads = o.kv_heads > 0 ? o.kv_heads : o.heads;
  each_sequence(x, y, [&](const token_list<T>& in) {
    token_list<T> q = linear(in, p, "q_proj"), k = linear(in, p, "k_proj");
    if (o.qk_norm) {
      q = head_rms_norm(q, static_cast<std::size_t>(heads), p.at("q_norm.weight"), 1e-5);
      k = head_rms_norm(k, static_cast<std::size_t>(kv_heads), p.at("k_norm.weight"), 1e-5);
    }
    const flat_tokens<T> gates(each(linear(in, p, "f_proj"), detail::log_logistic<T>));
    token_list<T> out =
        attention(q, k, linear(in, p, "v_proj"), heads, kv_heads, fox<T>{gates.per_head()});
    if (o.output_gate) {
      out = each(out, linear(in, p, "g_proj"), [](T a, T z) { return a * logistic(z); });
    }
    return linear(out, p, "o_proj");
  });
}

// ForgettingAttentionLayer.
template <class T>
void forgetting_attention_layer(const layers::forgetting_attention_layer_options& o,
                                const layer_tensors<T>& p, const tensor_view<const T, 3>& x,
                                const tensor_view<T, 3>& y) {
  const auto heads = static_cast<std::size_t>(o.heads);
  each_sequence(x, y, [&](const token_list<T>& in) {
    const auto shifted = [&](const std::string& name, bool with_shift) {
      if (!with_shift) return linear(in, p, name);
      return shift(linear(in, p, name + ".linear"), linear(in, p, name + ".shift_proj"));
    };
    token_list<T> q = linear(in, p, "q_proj"), k = shifted("k_proj", o.key_shift);
    if (o.qk_norm) {
      q = head_rms_norm(q, heads, p.at("q_norm.weight"), 1e-5);
      k = head_rms_norm(k, heads, p.at("k_norm.weight"), 1e-5);
    }
    token_list<T> logits(in.size(), std::vector<T>(heads, T(1000)));  // none: log f = 0
    if (o.gates == layers::forget_gate::full) logits = linear(in, p, "fgate_proj");
    if (const auto* bias = detail::find(p, "fgate_bias")) logits.assign(in.size(), bias->values);
    const flat_tokens<T> gates(each(logits, detail::log_logistic<T>));
    token_list<T> out =
        attention(q, k, shifted("v_proj", o.value_shift), o.heads, o.heads,
                  rope{.theta = o.rope_base, .on = o.rope}, fox<T>{gates.per_head()});
    if (o.output_norm) {
      out = head_rms_norm(out, heads, p.at("output_norm.weight"), o.output_norm_eps);
    }
    if (o.output_gate) {
      const bool silu = o.activation == layers::gate_activation::silu;
      out = each(out, linear(in, p, "ogate_proj"),
                 [&](T a, T z) { return a * logistic(z) * (silu ? z : T(1)); });
    }
    return linear(out, p, "o_proj");
  });
}

// MultiHeadAttn around ContextPosSelfAttn; with o.rope before CoPE.
template <class T>
void cope_attention(const layers::cope_attention_options& o, const layer_tensors<T>& p,
                    const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y) {
  each_sequence(x, y, [&](const token_list<T>& in) {
    cope<T> counts(detail::view<2>(p, "attn.pos_emb"), o.cope.scale, o.cope.gates);
    const bool own_keys = o.cope.gates == cope_gates::separate_keys;
    const flat_tokens<T> gate_keys(own_keys ? linear(in, p, "proj_key_cope") : in);
    if (own_keys) counts.gate_keys = gate_keys.heads(o.heads);
    const relative<T> distances{detail::view<2>(p, "attn.rel_pos_emb.emb"),
                                o.cope.extend_distances};
    return linear(attention(linear(in, p, "proj_query"), linear(in, p, "proj_key"),
                            linear(in, p, "proj_val"), o.heads, o.heads, o.rope, counts, distances),
                  p, "proj_out");
  });
}

// MTA's Attention, with mechanisms of the caller's behind MTA's in the list.
template <class T, class... More>
token_list<T> mta_rows(const layers::mta_attention_options& o, const layer_tensors<T>& p,
                       const token_list<T>& in, const More&... more) {
  const index kv_heads = o.kv_heads > 0 ? o.kv_heads : o.heads;
  const rope turn{o.rope_theta, rope_pairs::interleaved, 0, 0, o.rope_theta != 0};
  return linear(
      attention(linear(in, p, "wq"), linear(in, p, "wk"), linear(in, p, "wv"), o.heads, kv_heads,
                turn, conv<T>{detail::view<3>(p, "mta_kernel"), o.mta.side},
                head_mix<T>{detail::view<2>(p, "wpsm.weight")},
                after<conv<T>>{{detail::view<3>(p, "mta_kernel_after_sm"), o.mta.side}},
                after<group_mix<T>>{{detail::view<3>(p, "head_kernel")}},
                after<head_mix<T>>{{detail::view<2>(p, "wposm.weight")}},
                head_norm<T>{detail::view<1>(p, "subln.weight"), o.mta.norm_eps, o.mta.norm_factor},
                head_gate<T>{detail::view<2>(p, "gate.weight"), detail::view<1>(p, "gate.bias")},
                more...),
      p, "wo");
}
template <class T>
void mta_attention(const layers::mta_attention_options& o, const layer_tensors<T>& p,
                   const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y) {
  each_sequence(x, y, [&](const token_list<T>& in) { return mta_rows(o, p, in); });
}

}  // namespace heed::inline HEED_ABI::reference
