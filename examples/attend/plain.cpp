// Softmax attention and the position schemes that do not look at content: RoPE, ALiBi, learned
// relative positions.
#include "call.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/relative.hpp"
#include "rope.hpp"

namespace attend_program {

outcome run_softmax(const case_folder& c, const settings& s) {
  return for_type(s.type, [&](auto zero) { return attend<decltype(zero)>(c, s); });
}

outcome run_rope(const case_folder& c, const settings& s) {
  if (c.flag("fox")) return run_fox_rope(c, s);
  return for_type(s.type, [&](auto zero) { return attend<decltype(zero)>(c, s, rope_of(c)); });
}

outcome run_alibi(const case_folder& c, const settings& s) {
  return for_type(s.type, [&](auto zero) { return attend<decltype(zero)>(c, s, heed::alibi{}); });
}

outcome run_relative(const case_folder& c, const settings& s) {
  return for_type(s.type, [&](auto zero) {
    using T = decltype(zero);
    const heed::index columns = c.has("rel_pos_max") ? c.extent("rel_pos_max") : case_folder::any;
    const auto embedding = c.tensor<T>("rel_emb", {c.problem().D, columns});
    const heed::relative<T> far{embedding.template view<T, 2>(), c.flag("rel_extend")};
    gradient_places<T> places(s);
    return attend<T>(c, s, places,
                     heed::with_grad(far, {places.template of<2>("rel_emb", embedding)}));
  });
}

}  // namespace attend_program
