// Softmax attention and the position schemes that do not look at content: RoPE, ALiBi, learned
// relative positions.
#include "call.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/mechanisms/rope.hpp"

namespace attend_program {
namespace {

heed::rope rope_of(const attend_case& c) {
  const std::string style = c.text("rope_style");
  if (style != "half" && style != "interleaved") {
    throw case_error((c.folder() / "case.txt").string() + ": rope_style=" + style +
                     " is not half or interleaved");
  }
  heed::rope rope;
  rope.theta = c.real("rope_theta");
  rope.pairs = style == "half" ? heed::rope_pairs::half : heed::rope_pairs::interleaved;
  rope.rotary_dim = c.has("rotary_dim") ? c.extent("rotary_dim") : 0;
  rope.offset = c.has("rope_offset") ? c.integer("rope_offset") : 0;
  return rope;
}

}  // namespace

outcome run_softmax(const attend_case& c, const settings& s) {
  return for_type(s.type, [&](auto zero) { return attend<decltype(zero)>(c, s); });
}

outcome run_rope(const attend_case& c, const settings& s) {
  if (c.flag("fox")) throw not_built("mechanism rope with fox is not built yet");
  return for_type(s.type, [&](auto zero) { return attend<decltype(zero)>(c, s, rope_of(c)); });
}

outcome run_alibi(const attend_case& c, const settings& s) {
  return for_type(s.type, [&](auto zero) { return attend<decltype(zero)>(c, s, heed::alibi{}); });
}

outcome run_relative(const attend_case& c, const settings& s) {
  return for_type(s.type, [&](auto zero) {
    using T = decltype(zero);
    const heed::index columns = c.has("rel_pos_max") ? c.extent("rel_pos_max") : attend_case::any;
    const auto embedding = c.tensor<T>("rel_emb", {c.problem().D, columns});
    return attend<T>(c, s,
                     heed::relative<T>{embedding.template view<T, 2>(), c.flag("rel_extend")});
  });
}

}  // namespace attend_program
