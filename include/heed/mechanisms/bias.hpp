// Additive bias.
//
//   L_ij <- L_ij + values[b, h, i, j]
//
// -inf is allowed and gives weight 0; a row of nothing but -inf counts as one that sees no key.
// Axes of extent 1 repeat. In a packed batch i and j are the packed indices. Cost: one addition per
// score, and the memory traffic of the values.
#pragma once

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

template <class T>
struct bias {
  tensor_view<const T, 4> values;  // [B|1, Hq|1, T|1, S|1]

  // Throws shape_error for an axis that is neither 1 nor the extent of the call.
  void check(const problem& p) const {
    check_extents("bias", "values", values,
                  {{{"batch", p.B, true},
                    {"query heads", p.Hq, true},
                    {"queries", p.T, true},
                    {"keys", p.S, true}}});
  }
};
template <class T>
bias(tensor_view<T, 4>) -> bias<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
