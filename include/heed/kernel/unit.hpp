// A unit: heads of one sequence that are swept with the same keys, and what a call knows of them.
#pragma once

#include "heed/kernel/stage_list.hpp"
#include "heed/kernel/tile.hpp"
#include "heed/saved.hpp"

namespace heed::inline HEED_ABI::kernel {

// Sizes that hold for a whole call.
struct block_sizes {
  index rows;   // query rows of a block, halo rows not counted
  index panel;  // keys of a panel
  index strip;  // rows that go down the pipeline together where no stage looks at other rows
  index keys;   // that there may be
  index kept;   // logits that the first of two sweeps may leave to the second
};

// Values as the products read them: row-major, padded to whole vectors. One per unit.
template <class T>
struct value_rows {
  const T* data = nullptr;
  index head_stride = 0, row_stride = 0;

  const T* at(index kv_head, index key) const noexcept {
    return data + kv_head * head_stride + key * row_stride;
  }
  T element(index kv_head, index key, index d) const noexcept { return at(kv_head, key)[d]; }
  // out[rows x Dv] += weights[rows x keys] times the values of keys [key, key + keys).
  template <class Arch>
  void add_to(const T* weights, index ldw, index kv_head, index key, index keys, T* out, index ldo,
              index rows, index Dv) const {
    product<Arch>(weights, ldw, at(kv_head, key), row_stride, out, ldo, rows, Dv, keys, start::add);
  }
};

// Heads [head, head + heads) of one sequence, which share keys or mix: what a row block belongs to.
template <class T, class Arch, class List, class Source, class Values = value_rows<T>>
struct unit {
  const List& list;
  const plan_set<T, Arch, List>& plans;
  const visibility& visible;
  const Source& source;
  Values values;  // of the unit's key/value heads
  index head, heads;
  tensor_view<T, 4> out;
  tensor_view<T, 3> lse;
  block_sizes sizes;
  index first_out = 0;  // row of the sequence that out and lse begin with
  saved_view<T> saved = {};
};

}  // namespace heed::inline HEED_ABI::kernel
