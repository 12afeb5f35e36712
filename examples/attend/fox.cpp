// FoX: log forget gates g [B, S, Hq] of a case of mechanism fox, or of rope with fox=1.
#include "heed/mechanisms/fox.hpp"

#include "call.hpp"
#include "rope.hpp"

namespace attend_program {
namespace {

template <class T>
heed::io::npy_array gates_of(const case_folder& c) {
  const heed::problem p = c.problem();
  return c.tensor<T>("g", {p.B, p.S, p.Hq});
}

template <class T>
auto fox_of(const heed::io::npy_array& gates, gradient_places<T>& places) {
  return heed::with_grad(heed::fox<T>{gates.template view<T, 3>()},
                         {places.template of<3>("g", gates)});
}

outcome attend_fox(const case_folder& c, const settings& s, const heed::rope& rope) {
  return for_type(s.type, [&](auto zero) {
    using T = decltype(zero);
    const auto gates = gates_of<T>(c);
    gradient_places<T> places(s);
    return attend<T>(c, s, places, rope, fox_of(gates, places));
  });
}

}  // namespace

outcome run_fox(const case_folder& c, const settings& s) {
  return attend_fox(c, s, {.on = false});
}
outcome run_fox_rope(const case_folder& c, const settings& s) {
  return attend_fox(c, s, rope_of(c));
}

}  // namespace attend_program
