// PaTH, alone and with FoX in either place of its gate.
#include "heed/mechanisms/path.hpp"

#include "call.hpp"
#include "heed/mechanisms/fox.hpp"

namespace attend_program {

outcome run_path(const case_folder& c, const settings& s) {
  return for_type(s.type, [&](auto zero) {
    using T = decltype(zero);
    const heed::problem p = c.problem();
    const auto w = c.tensor<T>("w", {p.B, p.S, p.Hkv, p.D});
    const auto beta = c.tensor<T>("beta", {p.B, p.S, p.Hkv});
    gradient_places<T> places(s);
    const auto path = heed::with_grad(
        heed::path{w.template view<T, 4>(), beta.template view<T, 3>(), s.path_chunk, s.path_block},
        {places.template of<4>("w", w), places.template of<3>("beta", beta)});
    if (!c.has("gate")) return attend<T>(c, s, places, path);

    const std::string gate = c.text("gate");
    if (gate != "inside_scale" && gate != "outside_scale") {
      throw case_error((c.folder() / "case.txt").string() + ": gate=" + gate +
                       " is not inside_scale or outside_scale");
    }
    const auto log_f = c.tensor<T>("g", {p.B, p.S, p.Hq});
    const heed::fox fox{log_f.template view<T, 3>(), gate == "inside_scale"
                                                         ? heed::gate::inside_scale
                                                         : heed::gate::outside_scale};
    return attend<T>(c, s, places, path, heed::with_grad(fox, {places.template of<3>("g", log_f)}));
  });
}

}  // namespace attend_program
