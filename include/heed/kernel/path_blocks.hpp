// PaTH's keys, prepared: chunks, and above them a binary tree of blocks.
//
// A chunk of tokens is kept in compact form (householder.hpp). `chunks` (a power of two) chunks
// make a block, and the chunks of a block are the leaves of a binary tree. A query that has been
// carried back to the edge of a chunk reads the node that ends at this edge and is not a right
// child: a left child, or the whole block. For each such node there are
//
//   its keys, carried forward to the node's end, and
//   the product of its transformations, [D][padded_D], which takes the query to the node's start.
//
// So a score costs one dot product wherever its key stands, and a query is multiplied by a matrix
// once per level of its own block and once per older block. A token takes D^2 multiplications a
// level to carry its keys, and about 4 D^2 once for the matrices.
#pragma once

#include "heed/kernel/householder.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/workspace.hpp"

namespace heed::inline HEED_ABI::kernel {

// Where things lie in the memory of one key head. Chunks count from key 0 of the sequence.
template <class T, class Arch>
struct path_layout {
  using shape_type = chunk_shape<T, Arch>;

  shape_type chunk;
  index levels = 0;  // of the tree: 2^levels chunks in a block
  index all_chunks = 0, blocks = 0;

  // chunk_size and block_size 0: chosen here.
  path_layout(index S, index D, index chunk_size, index block_size)
      : chunk{D, chunk_size > 0 ? chunk_size : (std::min)(index{64}, round_up(S, width<T, Arch>))} {
    // A larger block means fewer matrices on the way, and one more carry for each key.
    const index goal = block_size > 0 ? block_size : std::clamp<index>(S / 4, 512, 1024);
    const index size = (std::max)(index{1}, chunk.tokens);
    while ((size << levels) < goal && (size << levels) < S) ++levels;
    all_chunks = (S + size - 1) / size;
    blocks = (all_chunks + chunks() - 1) / chunks();
  }

  index chunks() const noexcept { return index{1} << levels; }
  index block_tokens() const noexcept { return chunk.tokens << levels; }

  // The node that ends at the start of chunk `edge` > 0.
  struct node {
    index first_chunk;
    index level;
    index slot;    // its carried keys: a run of packed chunks, from this one of all such on
    index keys;    // their offset
    index matrix;  // offset of its matrix
  };
  node below(index edge) const noexcept {
    const index block = (edge - 1) / chunks(), within = edge - block * chunks();
    index level = 0;
    while (level < levels && (within >> level) % 2 == 0) ++level;
    const index slot = carried(block, level, within >> level);
    return {edge - (index{1} << level), level, slot, carried_keys(slot),
            matrices() + (edge - 1) * chunk.matrix_size()};
  }

  // Chunk c in the memory of a head.
  template <class U>
  chunk_data<U> at(U* head, index c) const noexcept {
    U* keys = head + c * record_size();
    U* minus_w = keys + chunk.columns_size();
    U* y = minus_w + chunk.columns_size();
    return {keys, minus_w, y, y + chunk.y_size()};
  }
  // Chunks of carried keys in all.
  index slots() const noexcept { return all_chunks + blocks * levels * (chunks() / 2); }
  index total() const noexcept { return matrices() + all_chunks * chunk.matrix_size(); }

 private:
  index record_size() const noexcept {
    return 2 * chunk.columns_size() + chunk.y_size() + chunk.m_size();
  }
  // The slot of a whole block, or of a left child: `number` is odd and counts nodes of its level
  // within the block.
  index carried(index block, index level, index number) const noexcept {
    if (level == levels) return block * chunks();
    return all_chunks + (block * levels + level) * (chunks() / 2) + ((number / 2) << level);
  }
  index carried_keys(index slot) const noexcept {
    return all_chunks * record_size() + slot * chunk.columns_size();
  }
  index matrices() const noexcept { return carried_keys(slots()); }
};

// The keys that rows of a sequence reach: visible ones are in [first, last), and no path crosses a
// token outside (first, last). Nothing else is read.
struct path_reach {
  index first = 0, last = 0;

  // Token of a row: the newest that its path starts with.
  static index token(const sequence& s, index row) noexcept {
    return (std::min)(row + s.position, s.S - 1);
  }
  static path_reach of(const visibility& seen) noexcept {
    path_reach reach{seen.s.S, 0};
    for (index row = 0; row < seen.s.T; ++row) {
      const row_bounds b = seen.bounds(row);
      const bool early = b.first > seen.s.key_begin;
      if (b.lo >= b.hi && !early) continue;
      reach.first = (std::min)(reach.first, early ? seen.s.key_begin : b.lo);
      reach.last = (std::max)(reach.last, token(seen.s, row) + 1);
    }
    if (reach.first >= reach.last) reach = {};
    return reach;
  }
};

// Tokens of chunk c whose transformations some visible path may cross. The path of the oldest
// visible key leaves out that key's own transformation.
template <class T, class Arch>
key_range crossed_tokens(const path_layout<T, Arch>& layout, const path_reach& reach, index c) {
  const index size = layout.chunk.tokens;
  const index to = (std::min)((c + 1) * size, reach.last);
  return {(std::max)(c * size, (std::min)(to, reach.first + 1)), to};
}
// Rows [tokens][padded_D] of -w and the betas of a chunk; both 0 for tokens that no path crosses.
template <class T, class Arch, class Tokens>
void load_transformations(const path_layout<T, Arch>& layout, const path_reach& reach,
                          const Tokens& tokens, index c, T* minus_w, T* beta) {
  const index size = layout.chunk.tokens, Dp = layout.chunk.padded_D(), start = c * size;
  const key_range crossed = crossed_tokens(layout, reach, c);
  if (crossed.begin != start || crossed.end != start + size) {
    for (index i = 0; i < size * Dp; ++i) minus_w[i] = T(0);
    for (index s = 0; s < size; ++s) beta[s] = T(0);
  }
  const index skip = crossed.begin - start;
  tokens.transformations(crossed.begin, crossed.end, minus_w + skip * Dp, Dp, beta + skip);
}

// One block of one key head while it is prepared.
template <class T, class Arch, class Tokens>
class path_block_builder {
 public:
  // `dust` [chunks of a block] is there for a block that is built bit by bit.
  path_block_builder(const path_layout<T, Arch>& layout, const path_reach& reach,
                     const Tokens& tokens, T* head, bool* plain, workspace& scratch,
                     T* dust = nullptr)
      : layout_(layout),
        shape_(layout.chunk),
        reach_(reach),
        tokens_(tokens),
        head_(head),
        plain_(plain) {
    const index rows = shape_.tokens * shape_.padded_D();
    key_rows_ = scratch.take<T>(rows);
    w_rows_ = scratch.take<T>(rows);
    beta_ = scratch.take<T>(shape_.tokens);
    square_ = scratch.take<T>(shape_.tokens * shape_.padded_tokens());
    matrix_ = scratch.take<T>(shape_.matrix_size());
    spare_ = scratch.take<T>(shape_.matrix_size());
    dust_ = dust != nullptr ? dust : scratch.take<T>(layout.chunks());
  }

  void build(index block) {
    build_chunks(block * layout_.chunks(), (block + 1) * layout_.chunks());
  }
  // Chunks [first, end) of one block, behind those before them.
  void build_chunks(index first, index end) {
    const index size = shape_.tokens;
    end = (std::min)(layout_.all_chunks, end);
    for (index c = first; c < end; ++c) {
      if ((c + 1) * size <= reach_.first) continue;
      if (c * size >= reach_.last) break;
      load(c);
      solve(c);
      if (reach_.last <= (c + 1) * size) break;  // no row stands beyond this chunk
      seal(c);
      merge(c);
    }
  }

 private:
  chunk_data<T> data(index c) const noexcept { return layout_.at(head_, c); }

  T& dust_of_chunk(index c) const noexcept { return dust_[c % layout_.chunks()]; }

  void load(index c) {
    const index Dp = shape_.padded_D(), start = c * shape_.tokens, end = start + shape_.tokens;
    const index from = (std::max)(start, reach_.first), to = (std::min)(end, reach_.last);
    const chunk_data<T> chunk = data(c);
    if (from == start && to == end) {
      tokens_.pack_keys(from, to, key_rows_, Dp, chunk.keys);
    } else {
      fill(key_rows_, T(0), shape_.tokens * Dp);
      tokens_.keys(from, to, key_rows_ + (from - start) * Dp, Dp);
      pack_columns<Arch>(key_rows_, Dp, index{1}, shape_.tokens, shape_.D, chunk.keys);
    }
    dust_of_chunk(c) = dust_of<Arch>(chunk.keys, shape_.columns_size());
    load_transformations(layout_, reach_, tokens_, c, w_rows_, beta_);
    pack_columns<Arch>(w_rows_, Dp, index{1}, shape_.tokens, shape_.D, chunk.minus_w);
  }

  void solve(index c) {
    const chunk_data<T> chunk = data(c);
    solve_chunk(shape_, chunk, w_rows_, beta_, square_);
    plain_[c] = all_finite<Arch>(chunk.y, shape_.y_size());  // not where some w or beta is not
    if (plain_[c]) return;
    // Rows of this chunk must not meet what is not finite in newer tokens, and pass it one by one.
    copy(w_rows_, chunk.y, shape_.y_size());
    copy(beta_, chunk.m, shape_.tokens);
  }

  using node_type = typename path_layout<T, Arch>::node;

  // Where keys of chunk c go that are carried to the end of a node.
  T* keys_of(const node_type& node, index c) const noexcept {
    return head_ + node.keys + (c - node.first_chunk) * shape_.columns_size();
  }

  // The chunk's matrix, and its keys at its end, as part of the largest node that ends there.
  void seal(index c) {
    T* ends = keys_of(layout_.below(c + 1), c);
    if (plain_[c]) {
      carry_to_chunk_end(shape_, data(c), ends);
      if (c * shape_.tokens > reach_.first) form_chunk_matrix(shape_, data(c), matrix_);
    } else {
      const index Dp = shape_.padded_D();
      unpack_columns<Arch>(data(c).keys, shape_.tokens, shape_.D, key_rows_, Dp);
      for (index j = 0; j < shape_.tokens; ++j) {
        pass_tokens(w_rows_, Dp, beta_, j + 1, shape_.tokens, shape_.D, key_rows_ + j * Dp);
      }
      pack_columns<Arch>(key_rows_, Dp, index{1}, shape_.tokens, shape_.D, ends);
      fill(matrix_, std::numeric_limits<T>::quiet_NaN(), shape_.matrix_size());
    }
    remove_dust(ends, c);
  }
  void remove_dust(T* keys, index c) const {
    copy_without_dust<Arch>(keys, keys, shape_.columns_size(), dust_of_chunk(c));
  }

  // Joins finished nodes as far as chunk c ends them, like carries in binary counting.
  void merge(index c) {
    const node_type node = layout_.below(c + 1);
    index right_begin = c;
    for (index level = 0; level < node.level; ++level) {
      const node_type left = layout_.below(right_begin);
      if (right_begin * shape_.tokens > reach_.first) carry(left, node);
      right_begin = left.first_chunk;
      if (right_begin * shape_.tokens > reach_.first) {
        multiply(matrix_, head_ + left.matrix, shape_.padded_D(), spare_, shape_.D);
        std::swap(matrix_, spare_);
      }
    }
    if (right_begin * shape_.tokens > reach_.first) {
      copy_without_dust<Arch>(matrix_, head_ + node.matrix, shape_.matrix_size(), dust<T>);
    }
  }
  // The keys of a left child move on to the end of its sibling, whose matrix is at hand, and so to
  // the end of the node.
  void carry(const node_type& left, const node_type& node) {
    constexpr index strip = strip_width<T, Arch>;
    for (index n = 0; n < index{1} << left.level; ++n) {
      const index c = left.first_chunk + n;
      const T* from = keys_of(left, c);
      T* to = keys_of(node, c);
      for (index at = 0; at < shape_.columns_size(); at += shape_.D * strip) {
        multiply(matrix_, from + at, strip, to + at, strip);
      }
      remove_dust(to, c);
    }
  }
  // to[D x cols] = matrix from[D x cols], both with row stride ld.
  void multiply(const T* matrix, const T* from, index ld, T* to, index cols) {
    product<Arch>(matrix, shape_.padded_D(), from, ld, to, ld, shape_.D, cols, shape_.D,
                  start::zero);
  }
  static void copy(const T* from, T* to, index n) {
    for (index i = 0; i < n; ++i) to[i] = from[i];
  }
  static void fill(T* to, T value, index n) {
    for (index i = 0; i < n; ++i) to[i] = value;
  }

  const path_layout<T, Arch>& layout_;
  const chunk_shape<T, Arch>& shape_;
  const path_reach& reach_;
  const Tokens& tokens_;
  T* head_;
  bool* plain_;  // [all_chunks]
  T *key_rows_, *w_rows_, *beta_, *square_, *matrix_, *spare_;
  T* dust_;  // [chunks of the block]: what counts as 0 among a chunk's keys
};

}  // namespace heed::inline HEED_ABI::kernel
