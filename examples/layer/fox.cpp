// ForgettingAttention of flash-linear-attention, ForgettingAttentionLayer of
// forgetting-transformer.
#include "heed/layers/forgetting_attention_layer.hpp"

#include "held_layer.hpp"
#include "kinds.hpp"

namespace layer_program {

template <class T>
layer_ptr<T> make_layer(const heed::layers::forgetting_attention_options& o) {
  return hold(heed::layers::forgetting_attention<T>(o), heed::layers::forgetting_attention_names);
}
template layer_ptr<float> make_layer(const heed::layers::forgetting_attention_options&);
template layer_ptr<double> make_layer(const heed::layers::forgetting_attention_options&);

template <class T>
layer_ptr<T> make_fox(const case_folder& c) {
  heed::layers::forgetting_attention_options o;
  o.model_dim = c.extent("arg.hidden_size");
  o.heads = c.extent("arg.num_heads");
  o.kv_heads = integer_or(c, "arg.num_kv_heads", 0);
  o.qkv_bias = c.flag("arg.qkv_bias");
  o.qk_norm = c.flag("arg.qk_norm");
  o.output_gate = c.flag("arg.use_output_gate");
  skip(c, {"arg.layer_idx", "arg.window_size"});
  return make_layer<T>(o);
}
template layer_ptr<float> make_fox(const case_folder&);
template layer_ptr<double> make_fox(const case_folder&);

namespace {

heed::layers::forget_gate gates_of(const case_folder& c) {
  using heed::layers::forget_gate;
  const std::string type = c.text("arg.fgate_type");
  if (type == "full") return forget_gate::full;
  if (type == "bias_only") return forget_gate::bias_only;
  if (type == "fixed") return forget_gate::fixed;
  if (type == "none") return forget_gate::none;
  throw case_error((c.folder() / "case.txt").string() + ": arg.fgate_type=" + type +
                   " is not full, bias_only, fixed or none");
}
heed::layers::gate_activation activation_of(const case_folder& c) {
  using heed::layers::gate_activation;
  const std::string name = c.has("arg.ogate_act") ? c.text("arg.ogate_act") : "sigmoid";
  if (name == "sigmoid") return gate_activation::sigmoid;
  if (name == "silu") return gate_activation::silu;
  throw case_error((c.folder() / "case.txt").string() + ": arg.ogate_act=" + name +
                   " is not sigmoid or silu");
}

}  // namespace

template <class T>
layer_ptr<T> make_layer(const heed::layers::forgetting_attention_layer_options& o) {
  return hold(heed::layers::forgetting_attention_layer<T>(o),
              heed::layers::forgetting_attention_layer_names);
}
template layer_ptr<float> make_layer(const heed::layers::forgetting_attention_layer_options&);
template layer_ptr<double> make_layer(const heed::layers::forgetting_attention_layer_options&);

template <class T>
layer_ptr<T> make_foxpro(const case_folder& c) {
  heed::layers::forgetting_attention_layer_options o;
  o.model_dim = c.extent("arg.hidden_size");
  o.heads = c.extent("arg.num_heads");
  // The word none stands for a kind of gate here, and for a missing value elsewhere.
  o.gates = c.has("arg.fgate_type") ? gates_of(c) : heed::layers::forget_gate::none;
  o.shortest_decay = real_or(c, "arg.decay_time_min", 1);
  o.longest_decay = real_or(c, "arg.decay_time_max", o.shortest_decay);
  o.qk_norm = c.flag("arg.qk_norm");
  o.qk_norm_shared = c.flag("arg.qk_norm_share_param_across_head");
  o.key_shift = c.flag("arg.use_k_shift");
  o.value_shift = c.flag("arg.use_v_shift");
  o.output_gate = c.flag("arg.use_output_gate");
  o.activation = activation_of(c);
  o.output_norm = c.flag("arg.use_output_norm");
  o.output_norm_eps = real_or(c, "arg.norm_eps", 1e-6);
  o.rope = c.flag("arg.use_rope");
  o.rope_base = real_or(c, "arg.rope_base", 500000);
  must_be_off(c, {"arg.num_kv_heads", "arg.window_size", "arg.log_pruning_tolerance"});
  skip(c, {"arg.layer_idx", "arg.initializer_range", "arg.fgate_bias_init",
           "arg.max_position_embeddings"});
  return make_layer<T>(o);
}
template layer_ptr<float> make_foxpro(const case_folder&);
template layer_ptr<double> make_foxpro(const case_folder&);

}  // namespace layer_program
