// PaTH, alone and with FoX in either place of its gate.
#include "heed/mechanisms/path.hpp"

#include "call.hpp"
#include "heed/mechanisms/fox.hpp"

namespace attend_program {

outcome run_path(const attend_case& c, const settings& s) {
  return for_type(s.type, [&](auto zero) {
    using T = decltype(zero);
    const heed::problem p = c.problem();
    const auto w = c.tensor<T>("w", {p.B, p.S, p.Hkv, p.D});
    const auto beta = c.tensor<T>("beta", {p.B, p.S, p.Hkv});
    const heed::path path{w.template view<T, 4>(), beta.template view<T, 3>(), s.path_chunk,
                          s.path_block};
    if (!c.has("gate")) return attend_only<T>(c, s, path);

    const std::string gate = c.text("gate");
    if (gate != "inside_scale" && gate != "outside_scale") {
      throw case_error((c.folder() / "case.txt").string() + ": gate=" + gate +
                       " is not inside_scale or outside_scale");
    }
    const auto log_f = c.tensor<T>("g", {p.B, p.S, p.Hq});
    return attend_only<T>(
        c, s, path,
        heed::fox{log_f.template view<T, 3>(),
                  gate == "inside_scale" ? heed::gate::inside_scale : heed::gate::outside_scale});
  });
}

}  // namespace attend_program
