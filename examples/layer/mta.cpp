// Attention of RAM's MTA.
#include "heed/layers/mta_attention.hpp"

#include "held_layer.hpp"
#include "kinds.hpp"

namespace layer_program {
namespace {

heed::conv_keys side_of(const case_folder& c) {
  const std::string pad = c.has("arg.mta.pad_key") ? c.text("arg.mta.pad_key") : "both";
  if (pad == "both") return heed::conv_keys::both;
  if (pad == "left") return heed::conv_keys::left;
  if (pad == "right") return heed::conv_keys::right;
  throw case_error((c.folder() / "case.txt").string() + ": arg.mta.pad_key=" + pad +
                   " is not both, left or right");
}

}  // namespace

template <class T>
layer_ptr<T> make_layer(const heed::layers::mta_attention_options& o) {
  return hold(heed::layers::mta_attention<T>(o), heed::layers::mta_attention_names);
}
template layer_ptr<float> make_layer(const heed::layers::mta_attention_options&);
template layer_ptr<double> make_layer(const heed::layers::mta_attention_options&);

template <class T>
layer_ptr<T> make_mta(const case_folder& c) {
  heed::layers::mta_attention_options o;
  o.model_dim = c.extent("arg.dim");
  o.heads = c.extent("arg.n_heads");
  o.kv_heads = integer_or(c, "arg.n_kv_heads", 0);
  o.head_dim = c.extent("arg.head_dim");
  o.rope_theta = c.flag("rope_off") ? 0 : real_or(c, "arg.rope_theta", 10000);
  static_cast<void>(c.has("arg.rope_theta"));
  const auto span = [&](const char* queries, const char* keys) {
    return heed::layers::kernel_span{integer_or(c, queries, 0), integer_or(c, keys, 0)};
  };
  o.mta.logits = span("arg.mta.query_kernel_size", "arg.mta.key_kernel_size");
  o.mta.probabilities =
      span("arg.mta.after_sm_query_kernel_size", "arg.mta.after_sm_key_kernel_size");
  o.mta.side = side_of(c);
  o.mta.mix_logits = c.flag("arg.mta.pre_sm_linear_head");
  o.mta.mix_probabilities = c.flag("arg.mta.post_sm_linear_head");
  o.mta.mixed_group = integer_or(c, "arg.mta.head_kernel_size", 0);
  o.mta.norm = c.flag("arg.mta.group_norm");
  const heed::index depth = integer_or(c, "arg.layer_id", 0);
  if (c.flag("arg.mta.layer_norm_rescale")) o.mta.norm_factor = 1 - heed::lambda_init(depth);
  using heed::layers::head_gates;
  const bool single = c.flag("arg.mta.gate_1d");
  if (c.flag("arg.mta.add_gating")) {
    o.mta.gates = single ? head_gates::per_head : head_gates::per_component;
  }
  must_be_off(c, {"arg.dropout", "arg.cache_attention_maps"});
  skip(c, {"arg.max_seq_len", "arg.mta.mta_layers", "arg.mta.init_method", "arg.mta.curse_norm"});
  if (!c.flag("arg.mta.use_mta")) o.mta = {.logits = {}};
  return make_layer<T>(o);
}
template layer_ptr<float> make_mta(const case_folder&);
template layer_ptr<double> make_mta(const case_folder&);

}  // namespace layer_program
