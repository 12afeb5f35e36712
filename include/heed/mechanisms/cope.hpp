// CoPE: contextual position encoding. Positions count what the query finds worth counting.
//
//   G_is = sigmoid(x_is) for visible keys, else 0        gates
//   p_ij = min(sum over s >= j of G_is, npos - 1)        positions, key j included
//   zp_ij = z_i at p_ij, linear between z_in = <q_i, e_n>, n = floor p and ceil p
//   L_ij <- L_ij + scale zp_ij    (divided),   or   L_ij + zp_ij    (undivided)
//
// q is the caller's, before RoPE and PaTH, and z is not scaled. Gates from the keys read the logit
// that reaches CoPE, x_ij = L_ij; gates from separate keys u or from the values are
// x_ij = <q_i, u_j> / sqrt(D). Without causality the sum runs over all newer keys, too.
// Golovneva et al., Contextual Position Encoding, arXiv 2405.18719.
#pragma once

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

// Whether position logits are multiplied by the scale like q.k (the published repository's
// default, its `nodiv` off) or added as they are (the paper's listing, `nodiv` on).
enum class cope_scale { divided, undivided };

// Where the gates come from; values need Dv = D.
enum class cope_gates { keys, separate_keys, values };

template <class T>
struct cope {
  tensor_view<const T, 3> embedding = {};  // [1|Hq, D, npos]
  cope_scale scale = cope_scale::divided;
  cope_gates gates = cope_gates::keys;
  tensor_view<const T, 4> gate_keys = {};  // [B, S, Hkv, D], with cope_gates::separate_keys only

  cope() = default;
  cope(const tensor_view<const T, 3>& per_head, cope_scale s = cope_scale::divided,
       cope_gates g = cope_gates::keys, const tensor_view<const T, 4>& keys = {})
      : embedding(per_head), scale(s), gates(g), gate_keys(keys) {}
  // One table [D, npos] for all heads.
  cope(const tensor_view<const T, 2>& shared, cope_scale s = cope_scale::divided,
       cope_gates g = cope_gates::keys, const tensor_view<const T, 4>& keys = {})
      : cope(tensor_view<const T, 3>(shared.data(), {1, shared.extent(0), shared.extent(1)},
                                     {0, shared.stride(0), shared.stride(1)}),
             s, g, keys) {}

  // Throws shape_error for a table that does not fit, npos < 1, gates from values with Dv != D,
  // separate keys that do not fit, or keys that would not be read.
  void check(const problem& p) const {
    check_extents(
        "cope", "embedding", embedding,
        {{{"query heads", p.Hq, true}, {"head size", p.D}, {"positions", embedding.extent(2)}}});
    if (embedding.extent(2) < 1) {
      throw_axis_error("cope", "embedding", 2, "positions", 0, "at least 1");
    }
    if (gates == cope_gates::values && p.Dv != p.D) {
      throw_axis_error("cope", "v", 3, "value head size", p.Dv,
                       std::to_string(p.D) + " for gates from the values");
    }
    if (gates == cope_gates::separate_keys) {
      check_extents("cope", "gate_keys", gate_keys,
                    {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}, {"head size", p.D}}});
    } else if (gate_keys.data() != nullptr) {
      throw shape_error("heed: cope: gate_keys: given, but gates are not separate_keys");
    }
  }
};
template <class T, int Rank>
cope(tensor_view<T, Rank>) -> cope<std::remove_const_t<T>>;
template <class T, int Rank>
cope(tensor_view<T, Rank>, cope_scale) -> cope<std::remove_const_t<T>>;
template <class T, int Rank>
cope(tensor_view<T, Rank>, cope_scale, cope_gates) -> cope<std::remove_const_t<T>>;
template <class T, int Rank, class U>
cope(tensor_view<T, Rank>, cope_scale, cope_gates, tensor_view<U, 4>)
    -> cope<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
