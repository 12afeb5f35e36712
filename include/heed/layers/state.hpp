// What a part of a layer remembers of the tokens before a chunk: its last input rows.
#pragma once

#include <algorithm>
#include <span>

#include "heed/layers/parameter.hpp"

namespace heed::inline HEED_ABI::layers {

// The last `depth` rows of each of `sequences`, 0 at first.
template <class T>
struct row_history {
  index depth = 0, cols = 0;
  std::vector<T> data;  // [sequences][depth][cols], oldest first

  row_history() = default;
  row_history(index sequences, index rows, index columns)
      : depth(rows), cols(columns), data(static_cast<std::size_t>(sequences * rows * columns)) {}

  T* row(index sequence, index n) noexcept { return data.data() + (sequence * depth + n) * cols; }
  void reset(index sequence) noexcept {
    if (depth * cols > 0) std::fill_n(row(sequence, 0), depth * cols, T(0));
  }
  void copy(index from, index to) noexcept {
    if (depth * cols > 0 && from != to) std::copy_n(row(from, 0), depth * cols, row(to, 0));
  }
};

// A row_history as a chunk of tokens sees it: sequence n of the chunk is of[n]. Without a history
// (default) tokens begin their sequences.
template <class T>
struct history_rows {
  row_history<T>* rows = nullptr;
  std::span<const index> of = {};

  bool given() const noexcept { return rows != nullptr; }
  // Row n of the history of the chunk's sequence b, the newest at depth - 1; null without one.
  const T* row(index b, index n) const noexcept {
    return rows == nullptr ? nullptr : rows->row(of[static_cast<std::size_t>(b)], n);
  }
  // Goes on behind rows x [batch * tokens, cols].
  void keep(const buffer<T>& x, token_rows chunk) const noexcept {
    if (rows == nullptr || rows->depth == 0) return;
    const index depth = rows->depth, fresh = (std::min)(depth, chunk.tokens);
    for (index b = 0; b < chunk.batch; ++b) {
      T* first = rows->row(of[static_cast<std::size_t>(b)], 0);
      std::copy(first + fresh * rows->cols, first + depth * rows->cols, first);
      std::copy_n(x.row((b + 1) * chunk.tokens - fresh), fresh * rows->cols,
                  first + (depth - fresh) * rows->cols);
    }
  }
};

}  // namespace heed::inline HEED_ABI::layers
