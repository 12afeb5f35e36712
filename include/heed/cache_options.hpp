// What a KvCache is made of and asked for: shape, options, batches.
#pragma once

#include <optional>

#include "heed/mask.hpp"
#include "heed/options.hpp"

namespace heed::inline HEED_ABI {

// Element type of a KvCache that computes in T and stores keys and values as Stored.
template <class T, class Stored>
struct stored_as {};

// Extents of a cache.
struct cache_shape {
  index sequences = 1;
  index heads = 1;        // query heads
  index kv_heads = 0;     // a divisor of heads; 0: as many
  index head_size = 1;    // D
  index value_size = -1;  // Dv; -1: head_size
  index capacity = 0;     // tokens of each sequence that there is room for from the start
  index max_length = 0;   // tokens that a sequence may have; 0: no limit
  bool ring = false;      // with a window: tokens that no later row sees are dropped
  index spare = 64;       // with a ring: how many tokens rollback can take back, at least
};

// What all calls of a cache have in common.
struct cache_options {
  // causal(), with a window and always_visible where wanted; no lists, no view.
  heed::mask mask = causal();
  std::optional<double> scale = {};      // of q.k; default 1 / sqrt(D)
  executor_ref executor = {};            // who runs the tasks; default: the calling thread
  heed::workspace* workspace = nullptr;  // scratch that several caches may share, used by one call
                                         // at a time; default: one of its own
  heed::tuning tuning = {};
};

// The sequences of one call, and how the views of the call hold their tokens. A view's axis 0 has
// an entry for each sequence of the list, axis 1 as many tokens for all of them. Or, with `cu`,
// axis 0 has one entry and sequence n of the list has tokens [cu[n], cu[n+1]).
struct cache_batch {
  index_list sequences = {};  // each at most once; not given: all, in order
  index_list cu = {};         // [sequences + 1]
  index single = -1;          // one sequence, in place of a list

  cache_batch() = default;
  cache_batch(index sequence) : single(sequence) {}
  cache_batch(int sequence) : single(sequence) {}
  cache_batch(index_list list, index_list cu_tokens = {}) : sequences(list), cu(cu_tokens) {}
};

}  // namespace heed::inline HEED_ABI
