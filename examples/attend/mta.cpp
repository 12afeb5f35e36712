// MTA: every stage is in the list; those whose tensors the case does not have are not there.
#include <deque>

#include "call.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/rope.hpp"

namespace attend_program {
namespace {

heed::conv_keys side_of(const attend_case& c) {
  const std::string pad = c.text("pad_key");
  if (pad == "both") return heed::conv_keys::both;
  if (pad == "left") return heed::conv_keys::left;
  if (pad == "right") return heed::conv_keys::right;
  throw case_error((c.folder() / "case.txt").string() + ": pad_key=" + pad +
                   " is not both, left or right");
}

// The tensors of one case, and views of those that it has.
template <class T>
class mta_case {
 public:
  explicit mta_case(const attend_case& c) : case_(c), p_(c.problem()) {
    const heed::conv_keys side = side_of(c);
    const heed::index any = attend_case::any;
    if (c.has("kernel_pre")) pre = {read<3>("kernel_pre", {p_.Hq, any, any}), side};
    if (c.has("kernel_post")) {
      post = {heed::conv<T>{read<3>("kernel_post", {p_.Hq, any, any}), side}};
    }
    if (c.flag("pre_linear_head")) pre_heads = {read<2>("pre_head_weight", {p_.Hq, p_.Hq})};
    if (c.flag("post_linear_head")) {
      post_heads = {heed::head_mix<T>{read<2>("post_head_weight", {p_.Hq, p_.Hq})}};
    }
    if (c.has("head_kernel_size")) {
      const heed::index ch = c.extent("head_kernel_size");
      groups = {heed::group_mix<T>{read<3>("head_kernel", {any, ch, ch})}};
    }
    if (c.flag("group_norm")) {
      norm.weight = read<1>("norm_weight", {p_.Dv});
      norm.eps = c.real("norm_eps");
      if (c.flag("layer_norm_rescale")) norm.factor = 1 - heed::lambda_init(c.integer("layer_id"));
    }
    if (c.has("gating")) read_gate(c.text("gating"));
  }

  outcome run(const settings& s) const {
    if (!case_.has("rope_theta")) {
      return attend<T>(case_, s, pre, pre_heads, post, groups, post_heads, norm, gate);
    }
    const heed::rope rope{case_.real("rope_theta"), heed::rope_pairs::interleaved};
    return attend<T>(case_, s, rope, pre, pre_heads, post, groups, post_heads, norm, gate);
  }

 private:
  template <int Rank>
  heed::tensor_view<const T, Rank> read(const std::string& name,
                                        const std::vector<heed::index>& extents) {
    tensors_.push_back(case_.tensor<T>(name, extents));
    return tensors_.back().template view<T, Rank>();
  }
  void read_gate(const std::string& gating) {
    if (gating != "1d" && gating != "full") {
      throw case_error((case_.folder() / "case.txt").string() + ": gating=" + gating +
                       " is not 1d or full");
    }
    const heed::index gates = gating == "1d" ? 1 : p_.Dv;
    gate.weight = read<2>("gate_weight", {gates, p_.Dv});
    gate.bias = read<1>("gate_bias", {gates});
  }

  const attend_case& case_;
  heed::problem p_;
  std::deque<heed::io::npy_array> tensors_;
  heed::conv<T> pre = {};
  heed::head_mix<T> pre_heads = {};
  heed::after<heed::conv<T>> post = {};
  heed::after<heed::group_mix<T>> groups = {};
  heed::after<heed::head_mix<T>> post_heads = {};
  heed::head_norm<T> norm = {};
  heed::head_gate<T> gate = {};
};

}  // namespace

outcome run_mta(const attend_case& c, const settings& s) {
  // Read in every case, used in some: without them the keys would count as not understood.
  for (const char* flag : {"layer_norm_rescale", "group_norm"}) c.flag(flag);
  for (const char* value : {"norm_eps", "layer_id", "rope_style"}) c.has(value);
  return for_type(s.type, [&](auto zero) { return mta_case<decltype(zero)>(c).run(s); });
}

}  // namespace attend_program
