// PaTH: position encoding by accumulated Householder transformations.
//
//   L_ij = scale q_i^T H_p H_(p-1) ... H_(j+1) k_j,   H_s = I - beta_s w_s w_s^T,   p = p_i
//
// The product takes the query's own token and leaves out the key's; equivalently the key is carried
// forward in time, k <- k - beta_s (w_s . k) w_s for s = j + 1 .. p. w and beta are indexed by key
// position and belong to key heads; tokens outside [0, S) have H = I. Keys that a window, a padding
// or a view hides still stand between others: their transformations count. w is used as given, not
// normalised. Defined for keys not newer than the query.
// Yang et al., PaTH Attention, arXiv 2505.16381.
#pragma once

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

template <class T>
struct path {
  tensor_view<const T, 4> w;     // [B, S, Hkv, D]
  tensor_view<const T, 3> beta;  // [B, S, Hkv], in [0, 2] where the result shall not grow
  index chunk = 0;               // tokens in a chunk, 0: heed's choice
  index block = 0;               // tokens in a block of chunks, 0: heed's choice

  // Throws shape_error unless w is [B, S, Hkv, D], beta [B, S, Hkv], and the sizes are >= 0.
  void check(const problem& p) const {
    check_extents("path", "w", w,
                  {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}, {"head size", p.D}}});
    check_extents("path", "beta", beta, {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}}});
    if (chunk < 0 || block < 0) {
      throw shape_error("heed: path: chunk and block: are " + std::to_string(chunk) + " and " +
                        std::to_string(block) + ", expected at least 0");
    }
  }
  // Throws shape_error for a mask that shows keys newer than the query.
  void check(const problem&, const mask& m) const { check_hides_newer_keys("path", m); }
};
template <class T, class U>
path(tensor_view<T, 4>, tensor_view<U, 3>) -> path<std::remove_const_t<T>>;
template <class T, class U>
path(tensor_view<T, 4>, tensor_view<U, 3>, index) -> path<std::remove_const_t<T>>;
template <class T, class U>
path(tensor_view<T, 4>, tensor_view<U, 3>, index, index) -> path<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
