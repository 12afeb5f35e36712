// MTA: every stage is in the list; those whose tensors the case does not have are not there.
#include <deque>

#include "call.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/rope.hpp"

namespace attend_program {
namespace {

heed::conv_keys side_of(const case_folder& c) {
  const std::string pad = c.choice("pad_key", {"both", "left", "right"});
  return pad == "both"   ? heed::conv_keys::both
         : pad == "left" ? heed::conv_keys::left
                         : heed::conv_keys::right;
}

// The tensors of one case, and views of those that it has.
template <class T>
class mta_case {
 public:
  mta_case(const case_folder& c, const settings& s)
      : case_(c), settings_(s), p_(c.problem()), places_(s) {
    pre.side = post.side = side_of(c);
    const heed::index any = case_folder::any;
    if (c.has("kernel_pre"))
      read("kernel_pre", {p_.Hq, any, any}, pre.kernel, pre.destination.kernel);
    if (c.has("kernel_post")) {
      read("kernel_post", {p_.Hq, any, any}, post.kernel, post.destination.kernel);
    }
    if (c.flag("pre_linear_head")) {
      read("pre_head_weight", {p_.Hq, p_.Hq}, pre_heads.matrix, pre_heads.destination.matrix);
    }
    if (c.flag("post_linear_head")) {
      read("post_head_weight", {p_.Hq, p_.Hq}, post_heads.matrix, post_heads.destination.matrix);
    }
    if (c.has("head_kernel_size")) {
      const heed::index ch = c.extent("head_kernel_size");
      read("head_kernel", {any, ch, ch}, groups.matrices, groups.destination.matrices);
    }
    if (c.flag("group_norm")) {
      read("norm_weight", {p_.Dv}, norm.weight, norm.destination.weight);
      norm.eps = c.real("norm_eps");
      if (c.flag("layer_norm_rescale")) norm.factor = 1 - heed::lambda_init(c.integer("layer_id"));
    }
    if (c.has("gating")) read_gate(c.choice("gating", {"1d", "full"}));
  }

  outcome run() {
    const heed::rope rope = case_.has("rope_theta") ? heed::rope{case_.real("rope_theta"),
                                                                 heed::rope_pairs::interleaved}
                                                    : heed::rope{.on = false};
    return attend<T>(case_, settings_, places_, rope, pre, pre_heads, post, groups, post_heads,
                     norm, gate);
  }

 private:
  // A tensor of the case, and where its gradient goes.
  template <int Rank>
  void read(const std::string& name, const std::vector<heed::index>& extents,
            heed::tensor_view<const T, Rank>& tensor, heed::tensor_view<T, Rank>& gradient) {
    tensors_.push_back(case_.tensor<T>(name, extents));
    tensor = tensors_.back().template view<T, Rank>();
    gradient = places_.template of<Rank>(name, tensors_.back());
  }
  void read_gate(const std::string& gating) {
    const heed::index gates = gating == "1d" ? 1 : p_.Dv;
    read("gate_weight", {gates, p_.Dv}, gate.weight, gate.destination.weight);
    read("gate_bias", {gates}, gate.bias, gate.destination.bias);
  }

  template <class Stage>
  using with_grad = heed::differentiated<Stage>;

  const case_folder& case_;
  const settings& settings_;
  heed::problem p_;
  std::deque<heed::io::npy_array> tensors_;
  gradient_places<T> places_;
  with_grad<heed::conv<T>> pre = {};
  with_grad<heed::head_mix<T>> pre_heads = {};
  with_grad<heed::after<heed::conv<T>>> post = {};
  with_grad<heed::after<heed::group_mix<T>>> groups = {};
  with_grad<heed::after<heed::head_mix<T>>> post_heads = {};
  with_grad<heed::head_norm<T>> norm = {};
  with_grad<heed::head_gate<T>> gate = {};
};

}  // namespace

outcome run_mta(const case_folder& c, const settings& s) {
  // Read in every case, used in some: without them the keys would count as not understood.
  for (const char* flag : {"layer_norm_rescale", "group_norm"}) c.flag(flag);
  for (const char* value : {"norm_eps", "layer_id", "rope_style"}) c.has(value);
  return for_type(s.type, [&](auto zero) { return mta_case<decltype(zero)>(c, s).run(); });
}

}  // namespace attend_program
