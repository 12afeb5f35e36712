// MultiHeadAttn with ContextPosSelfAttn of RAM's CoPE.
#include "heed/layers/cope_attention.hpp"

#include "held_layer.hpp"
#include "kinds.hpp"

namespace layer_program {

template <class T>
layer_ptr<T> make_layer(const heed::layers::cope_attention_options& o) {
  return hold(heed::layers::cope_attention<T>(o), heed::layers::cope_attention_names);
}
template layer_ptr<float> make_layer(const heed::layers::cope_attention_options&);
template layer_ptr<double> make_layer(const heed::layers::cope_attention_options&);

template <class T>
layer_ptr<T> make_cope(const case_folder& c) {
  heed::layers::cope_attention_options o;
  o.model_dim = c.extent("arg.hid_sz");
  o.heads = c.extent("arg.nheads");
  o.head_dim = c.extent("arg.head_dim");
  const heed::index block = c.extent("arg.block_size");
  o.cope.positions = integer_or(c, "arg.cope_npos", block + 1);
  if (c.flag("arg.cope_nodiv")) o.cope.scale = heed::cope_scale::undivided;
  if (c.flag("arg.cope_val_gates")) o.cope.gates = heed::cope_gates::values;
  if (c.flag("arg.cope_sep_key")) o.cope.gates = heed::cope_gates::separate_keys;
  const std::string kind = c.text("arg.pos_emb");
  if (kind != "cope" && kind != "cope+rel") {
    throw case_error((c.folder() / "case.txt").string() + ": arg.pos_emb=" + kind +
                     " is not cope or cope+rel");
  }
  const heed::index distances = integer_or(c, "arg.rel_pos_max", block);
  if (kind == "cope+rel") o.cope.distances = distances;
  o.cope.extend_distances = c.flag("arg.rel_pos_extend");
  must_be_off(c, {"arg.drop"});
  skip(c, {"arg.post_norm", "arg.nlayers", "arg.cope_layers", "arg.lay_ind"});
  return make_layer<T>(o);
}
template layer_ptr<float> make_cope(const case_folder&);
template layer_ptr<double> make_cope(const case_folder&);

}  // namespace layer_program
