// What a call of attend takes beside its tensors.
#pragma once

#include <optional>

#include "heed/mask.hpp"
#include "heed/parallel.hpp"
#include "heed/workspace.hpp"

namespace heed::inline HEED_ABI {

// Sizes of the sweep, 0 for heed's own choice. Results do not depend on them but for rounding.
struct tuning {
  index rows = 0;   // query rows in a block
  index panel = 0;  // keys in a panel
  // Bytes of logits that each worker keeps where stages after softmax ask for two sweeps: what does
  // not fit is computed twice. Heed's own choice is 8 MB.
  index kept = 0;
};

template <class T>
class SavedForward;

// Options of attend; every field has a default, so that
//   heed::attend(q, k, v, out, {.mask = heed::causal()});
// is a whole call.
template <class T>
struct attend_options {
  heed::mask mask = {};                  // which keys each query sees; default: all
  std::optional<double> scale = {};      // of q.k; default 1 / sqrt(D)
  tensor_view<T, 3> lse = {};            // [B, T, Hq]: natural-log log-sum-exp of the final logits,
                                         // sinks included; -inf for a row that sees no key
  executor_ref executor = {};            // who runs the tasks; default: the calling thread
  heed::workspace* workspace = nullptr;  // scratch to keep between calls; default: one of its own
  heed::tuning tuning = {};
  SavedForward<T>* saved = nullptr;  // attend fills it, attend_grad reads it: saved.hpp
};

}  // namespace heed::inline HEED_ABI
