// What a stage is told when its plan and its rows are made.
#pragma once

#include "heed/parallel.hpp"
#include "heed/problem.hpp"
#include "heed/workspace.hpp"

namespace heed::inline HEED_ABI {

// The caller's tensors: q [B, T, Hq, D], k [B, S, Hkv, D], v [B, S, Hkv, Dv].
template <class T>
struct call_inputs {
  tensor_view<const T, 4> q, k, v;
};

// What all contexts tell: the call, one of its sequences, and where memory can be taken from.
template <class T, class Arch>
struct call_context {
  using value_type = T;
  using arch = Arch;
  const heed::problem& problem;
  const heed::sequence& sequence;
  const call_inputs<T>& inputs;
  workspace& memory;
};

// plan(context): one call, one sequence. Memory taken from `memory` lives as long as the plan.
template <class T, class Arch>
struct plan_context : call_context<T, Arch> {
  const heed::mask& mask;
  // The plan's hook keys will be asked for keys of [keys_from, keys_to) only: a cache has the
  // others already.
  index keys_from = 0, keys_to = mask::unlimited;
};

// keep(context): tokens [from, to) have come to a cache. The stage's tensors have all tokens so
// far; v the new ones.
template <class T, class Arch>
struct keep_context {
  const heed::problem& problem;
  index from, to;
  tensor_view<const T, 4> v;  // [1, to - from, Hkv, Dv]
  workspace& memory;
};

// rows(context): rows [row, row + count) of the sequence (halo rows included) of query heads
// [head, head + heads). Memory taken from `memory` lives as long as the rows. One column more than
// the newest key that any of these rows sees is `newest`: the sweep starts there and goes to older
// keys; panels hold at most `panel` keys.
template <class T, class Arch>
struct rows_context : call_context<T, Arch> {
  index head, heads;
  index row, count;
  index newest;
  index panel;

  // Query `r` of head `g` as the caller gave it: element d at data[d * stride].
  const T* query(index g, index r, index& stride) const noexcept {
    const tensor_view<const T, 4>& q = this->inputs.q;
    stride = q.stride(3);
    return q.pointer(this->sequence.batch, this->sequence.first_query + row + r, head + g,
                     index{0});
  }
};

// sums(gradient, context): query heads [head, head + heads) of one sequence. Memory taken from
// `memory` lives until reduce() has been called.
template <class T, class Arch>
struct owner_context : call_context<T, Arch> {
  index head, heads;
};

}  // namespace heed::inline HEED_ABI
