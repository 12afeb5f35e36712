// PaTHAttention of flash-linear-attention.
#include "heed/layers/path_attention.hpp"

#include "held_layer.hpp"
#include "kinds.hpp"

namespace layer_program {

template <class T>
layer_ptr<T> make_layer(const heed::layers::path_attention_options& o) {
  return hold(heed::layers::path_attention<T>(o), heed::layers::path_attention_names);
}
template layer_ptr<float> make_layer(const heed::layers::path_attention_options&);
template layer_ptr<double> make_layer(const heed::layers::path_attention_options&);

template <class T>
layer_ptr<T> make_path(const case_folder& c) {
  heed::layers::path_attention_options o;
  o.model_dim = c.extent("arg.hidden_size");
  o.heads = c.extent("arg.num_heads");
  o.kv_heads = integer_or(c, "arg.num_kv_heads", 0);
  o.low_rank_w = c.flag("arg.use_low_rank_w");
  const heed::index span = integer_or(c, "arg.conv_size", 3);
  o.conv_size = c.flag("arg.use_w_shortconv") ? span : 0;
  o.conv_bias = c.flag("arg.conv_bias");
  o.forget_gate = c.flag("arg.use_forget_gate");
  o.qk_norm = c.flag("arg.use_qk_norm");
  skip(c, {"arg.layer_idx"});
  return make_layer<T>(o);
}
template layer_ptr<float> make_path(const case_folder&);
template layer_ptr<double> make_path(const case_folder&);

}  // namespace layer_program
