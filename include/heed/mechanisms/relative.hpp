// Learned relative positions.
//
//   L_ij <- L_ij + scale <q_i, e[:, n - 1 - d]>      d = p_i - j, the distance of the key
//
// The last column of the embedding e [D, n] is distance 0. Farther keys than n - 1 get nothing, or
// column 0 with `extend`; keys newer than the query get nothing. q is the caller's, before RoPE
// and PaTH. Cost: n products of length D per row and head, one addition per score.
// Shaw et al., arXiv 1803.02155; this form is the relative bias of Golovneva et al.,
// Contextual Position Encoding, arXiv 2405.18719.
#pragma once

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

template <class T>
struct relative {
  tensor_view<const T, 2> embedding;  // [D, n], shared by all heads
  bool extend = false;                // distances above n - 1 use column 0 instead of nothing

  // Throws shape_error unless the embedding is [D, n] with n >= 1.
  void check(const problem& p) const {
    check_extents("relative", "embedding", embedding,
                  {{{"head size", p.D}, {"distances", embedding.extent(1)}}});
    if (embedding.extent(1) < 1) {
      throw_axis_error("relative", "embedding", 1, "distances", 0, "at least 1");
    }
  }
};
template <class T>
relative(tensor_view<T, 2>) -> relative<std::remove_const_t<T>>;
template <class T>
relative(tensor_view<T, 2>, bool) -> relative<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
