// CoPE, alone or with learned relative positions.
#include "heed/mechanisms/cope.hpp"

#include "call.hpp"
#include "heed/mechanisms/relative.hpp"

namespace attend_program {

outcome run_cope(const case_folder& c, const settings& s) {
  return for_type(s.type, [&](auto zero) {
    using T = decltype(zero);
    const heed::problem p = c.problem();
    const heed::index npos = c.extent("npos");
    heed::cope<T> cope;
    cope.scale = c.flag("nodiv") ? heed::cope_scale::undivided : heed::cope_scale::divided;
    heed::cope_grad<T> gradient;
    gradient_places<T> places(s);
    heed::io::npy_array table, gate_keys;
    if (c.flag("per_head_pos_emb")) {
      table = c.tensor<T>("pos_emb", {p.Hq, p.D, npos});
      cope = heed::cope<T>(table.template view<T, 3>(), cope.scale);
      gradient.embedding = places.template of<3>("pos_emb", table);
    } else {
      table = c.tensor<T>("pos_emb", {p.D, npos});
      cope = heed::cope<T>(table.template view<T, 2>(), cope.scale);
      gradient.embedding = places.template of<2>("pos_emb", table);
    }
    if (c.flag("val_gates")) cope.gates = heed::cope_gates::values;
    if (c.flag("sep_key")) {
      if (cope.gates == heed::cope_gates::values) {
        throw case_error((c.folder() / "case.txt").string() +
                         ": sep_key and val_gates are both set");
      }
      gate_keys = c.tensor<T>("key_cope", {p.B, p.S, p.Hkv, p.D});
      cope.gates = heed::cope_gates::separate_keys;
      cope.gate_keys = gate_keys.template view<T, 4>();
      gradient.gate_keys = places.template of<4>("key_cope", gate_keys);
    }
    const auto with_gradient = heed::with_grad(cope, gradient);
    if (!c.flag("rel")) return attend<T>(c, s, places, with_gradient);
    const heed::index columns = c.has("rel_pos_max") ? c.extent("rel_pos_max") : case_folder::any;
    const auto embedding = c.tensor<T>("rel_emb", {p.D, columns});
    const heed::relative<T> far{embedding.template view<T, 2>(), c.flag("rel_extend")};
    return attend<T>(c, s, places, with_gradient,
                     heed::with_grad(far, {places.template of<2>("rel_emb", embedding)}));
  });
}

}  // namespace attend_program
