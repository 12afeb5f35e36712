// FoX: the Forgetting Transformer's forget gate.
//
//   L_ij <- L_ij + c_i - c_j,   c_i - c_j = sum over tokens s = j + 1 .. p_i of log f_s
//
// The sum takes the gate of the query's token and leaves out that of the key. Gates are indexed by
// key position: row i, at position p_i, belongs to token p_i of its sequence, and tokens outside
// [0, S) have no gate (log f = 0). Keys that a window, a padding or a view hides still stand
// between others: their gates count. log f = -inf forgets all that came before, cleanly. Defined
// for keys not newer than the query. Cost: one addition per score.
// Lin et al., Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv 2503.02130;
// pruning: Lin et al., Adaptive Computation Pruning, arXiv 2504.06949.
#pragma once

#include <cmath>
#include <optional>

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

// Whether the decay stands beside the scaled logit, scale q.k + c_i - c_j (FoX), or within it,
// scale (q.k + c_i - c_j) (flash-linear-attention's PaTH).
enum class gate { outside_scale, inside_scale };

// Leave out keys whose decay makes them negligible.
struct pruning {
  // At most this much of the exact probabilities of a row is left out; in [0, 1). The default is
  // e^-10.
  double tolerance = 4.5399929762484854e-05;
  double logit_bound = 0;  // a bound on every |scale q.k|; 0: from the norms of q and k
};

template <class T>
struct fox {
  tensor_view<const T, 3> log_f;  // [B, S, Hq], log of the forget gate, <= 0; -inf allowed
  gate convention = gate::outside_scale;
  std::optional<pruning> prune = {};

  // Throws shape_error unless log_f is [B, S, Hq] and the pruning bounds make sense.
  void check(const problem& p) const {
    check_extents("fox", "log_f", log_f, {{{"batch", p.B}, {"keys", p.S}, {"query heads", p.Hq}}});
    if (!prune) return;
    if (!(prune->tolerance >= 0 && prune->tolerance < 1)) {
      throw shape_error("heed: fox: prune.tolerance: is " + std::to_string(prune->tolerance) +
                        ", expected at least 0 and below 1");
    }
    if (!(prune->logit_bound >= 0)) {
      throw shape_error("heed: fox: prune.logit_bound: is " + std::to_string(prune->logit_bound) +
                        ", expected at least 0");
    }
  }
  // Throws shape_error for a mask that shows keys newer than the query.
  void check(const problem&, const mask& m) const { check_hides_newer_keys("fox", m); }
};
template <class T>
fox(tensor_view<T, 3>) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate, pruning) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate, std::optional<pruning>) -> fox<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
