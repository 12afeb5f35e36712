// The adjoint of path_blocks.hpp: from gradients of the keys and matrices of every node to those of
// the caller's keys and of the transformations.
//
// All that row blocks leave here belongs to what they read: raw keys and compact forms of their own
// chunks, carried keys and matrices of the nodes that they met. Once all of them are done the tree
// is gone down, from each node that has no parent: a node's keys and matrix were made of those of
// its children, which takes as many products as it took to make them, twice.
#pragma once

#include <memory>

#include "heed/kernel/path_blocks.hpp"
#include "heed/kernel/reverse_householder.hpp"

namespace heed::inline HEED_ABI::kernel {

// One key head's arrays, rows by token, and the gradients of the same, which are added to.
template <class T>
struct path_arrays {
  T* keys;      // [chunks][tokens][padded_D]
  T* minus_w;   // the same
  T* beta;      // [chunks][tokens]
  T* solved;    // [chunks][ld][padded_tokens], transposed; the gradient [chunks][tokens][ld]
  T* carried;   // [slots][tokens][padded_D]: keys of nodes
  T* matrices;  // [chunks][D][padded_D]: of the nodes below each edge, transposed
};

template <class T, class Arch>
class path_head_adjoint {
 public:
  using layout_type = path_layout<T, Arch>;

  path_head_adjoint(const layout_type& layout, const path_reach& reach)
      : layout_(layout), reach_(reach) {
    if (reach.first >= reach.last) return;
    first_ = reach.first / layout.chunk.tokens;
    sealed_ = (reach.last - 1) / layout.chunk.tokens;
  }

  // Copies what the forward direction has prepared.
  template <class Tokens>
  void take(const T* head, const bool* plain, const Tokens& tokens, workspace& memory) {
    head_ = head;
    plain_ = plain;
    const index C = shape().tokens;
    arrays_.keys = memory.take<T>(layout_.all_chunks * C * shape().padded_D());
    take_arrays(arrays_, shape().padded_tokens(), memory, false);
    finite_ = true;
    for (index c = first_; c <= sealed_ && reach_.first < reach_.last; ++c) load(c, tokens);
    for (index c = first_; c < sealed_; ++c) load_node(c + 1);
  }

  // From here on gradients are collected; those of keys in [chunks][tokens][padded_D].
  void collect(T* keys, workspace& memory) {
    gradients_.keys = keys;
    zero(keys, layout_.all_chunks * shape().tokens * shape().padded_D());
    take_arrays(gradients_, shape().tokens, memory, true);
  }

  const path_arrays<T>& gradients() const noexcept { return gradients_; }
  const path_arrays<T>& arrays() const noexcept { return arrays_; }
  // Whether there is nothing that gradients of 0 must not meet.
  bool finite() const noexcept { return finite_; }
  bool plain(index chunk) const noexcept { return plain_[chunk]; }
  chunk_rows<T> chunk(index c) const noexcept { return rows_of(arrays_, c); }
  chunk_rows<T> gradients(index c) const noexcept {
    return gradients_.keys == nullptr ? chunk_rows<T>{} : rows_of(gradients_, c);
  }
  // Keys of a node from its column `at` on.
  index carried(index slot, index at) const noexcept {
    return (slot * shape().tokens + at) * shape().padded_D();
  }
  index matrix(index edge) const noexcept { return (edge - 1) * shape().matrix_size(); }

  // Everything becomes gradients of keys, -w and beta.
  void finish(workspace& memory) {
    if (reach_.first >= reach_.last) return;
    const workspace::scope taken(memory);
    const index size = shape().matrix_size();
    ends_ = memory.take<T>(layout_.block_tokens() * shape().padded_D());
    matrix_ = memory.take<T>(size);
    spare_ = memory.take<T>(size);
    moved_ = memory.take<T>(shape().tokens * shape().padded_D());
    pairs_ = memory.take<T>(2 * (layout_.levels + 1) * size);
    adjoint_ = std::construct_at(memory.take<chunk_adjoint<T, Arch>>(1), shape(), memory);
    for (index b = 0; b < layout_.blocks; ++b) finish_block(b);
  }

 private:
  const chunk_shape<T, Arch>& shape() const noexcept { return layout_.chunk; }
  index start_of(index c) const noexcept { return c * shape().tokens; }

  // All but the keys; `solved` is that many rows or columns wide.
  void take_arrays(path_arrays<T>& a, index solved, workspace& memory, bool zeroed) const {
    const index C = shape().tokens, Dp = shape().padded_D(), n = layout_.all_chunks;
    const auto take = [&](index count) {
      T* data = memory.take<T>(count);
      if (zeroed) zero(data, count);
      return data;
    };
    a.minus_w = take(n * C * Dp);
    a.beta = take(n * C);
    a.solved = take(n * shape().ld() * solved);
    a.carried = take(layout_.slots() * C * Dp);
    a.matrices = take(n * shape().matrix_size());
  }
  chunk_rows<T> rows_of(const path_arrays<T>& a, index c) const noexcept {
    const index C = shape().tokens, Dp = shape().padded_D();
    const index solved = &a == &arrays_ ? shape().padded_tokens() : C;
    return {a.keys + c * C * Dp, a.minus_w + c * C * Dp, a.beta + c * C,
            a.solved + c * shape().ld() * solved};
  }

  // Rows of a chunk's keys and transformations, its compact form transposed.
  template <class Tokens>
  void load(index c, const Tokens& tokens) {
    const index C = shape().tokens, Dp = shape().padded_D(), Cp = shape().padded_tokens();
    const auto from = layout_.at(head_, c);
    const chunk_rows<T> to = chunk(c);
    copy_keys(from.keys, to.keys);
    load_transformations(layout_, reach_, tokens, c, to.minus_w, to.beta);
    copy_transposed<Arch>(from.y, Dp, C, Dp, to.solved, Cp);
    copy_transposed<Arch>(from.m, Cp, C, Cp, to.solved + Dp * Cp, Cp);
    finite_ = finite_ && plain_[c] && all_finite<Arch>(to.keys, C * Dp);
  }
  // Packed keys of a chunk as rows; what pads them is 0.
  void copy_keys(const T* packed, T* rows) const {
    const index C = shape().tokens, D = shape().D, Dp = shape().padded_D();
    unpack_columns<Arch>(packed, C, D, rows, Dp);
    for (index s = 0; s < C; ++s) {
      for (index d = D; d < Dp; ++d) rows[s * Dp + d] = T(0);
    }
  }
  void load_node(index edge) {
    const index C = shape().tokens, D = shape().D, Dp = shape().padded_D();
    const auto node = layout_.below(edge);
    for (index c = (std::max)(first_, node.first_chunk); c < edge; ++c) {
      const index n = c - node.first_chunk;
      T* rows = arrays_.carried + carried(node.slot + n, 0);
      copy_keys(head_ + node.keys + n * shape().columns_size(), rows);
      finite_ = finite_ && all_finite<Arch>(rows, C * Dp);
    }
    if (start_of(node.first_chunk) <= reach_.first) return;
    T* turned = arrays_.matrices + matrix(edge);
    copy_transposed<Arch>(head_ + node.matrix, Dp, D, D, turned, Dp);
    for (index a = 0; a < D; ++a) {
      for (index d = D; d < Dp; ++d) turned[a * Dp + d] = T(0);
    }
    finite_ = finite_ && all_finite<Arch>(turned, D * Dp);
  }
  void finish_block(index block) {
    const index begin = block * layout_.chunks();
    const index end = (std::min)(begin + layout_.chunks(), sealed_);
    for (index n = 0; n < layout_.block_tokens() * shape().padded_D(); ++n) ends_[n] = T(0);
    block_begin_ = begin;
    for (index c = begin; c < end;) {
      index level = 0;
      while (level < layout_.levels && (c - begin) % (index{2} << level) == 0 &&
             c + (index{2} << level) <= end) {
        ++level;
      }
      T* dmatrix = pairs(level);
      zero(dmatrix, shape().matrix_size());
      finish_node(c, level, dmatrix);
      c += index{1} << level;
    }
    if (sealed_ >= begin && sealed_ < begin + layout_.chunks())
      finish_chunk(sealed_, false, nullptr);
  }

  // The children of a node, oldest chunk `first`, at its level. On entry ends_ holds what the
  // parent makes of the gradient of the node's keys, and dmatrix (transposed) of its matrix.
  void finish_node(index first, index level, T* dmatrix) {
    const index edge = first + (index{1} << level), size = shape().matrix_size();
    if (start_of(edge) <= reach_.first) return;
    const bool crossed = start_of(first) > reach_.first;
    const auto node = layout_.below(edge);
    const index tokens = shape().tokens << level;
    if (node.first_chunk == first) {
      // A left child or a whole block: rows have read it.
      add(gradients_.carried + carried(node.slot, 0), ends(first), tokens * shape().padded_D());
      if (crossed) add(gradients_.matrices + matrix(edge), dmatrix, size);
    }
    if (level == 0) return finish_chunk(first, true, crossed ? dmatrix : nullptr);
    const index middle = first + (index{1} << (level - 1));
    T *left = pairs(level - 1), *right = left + size;
    zero(left, 2 * size);
    if (start_of(middle) > reach_.first) part(first, middle, level - 1, crossed, dmatrix);
    finish_node(first, level - 1, left);
    // The left child's own children have used the same memory only below its level.
    finish_node(middle, level - 1, right);
  }
  // merge: keys of the left child, k <- R k;  matrix = R L, where the matrix is crossed.
  void part(index first, index middle, index level, bool crossed, const T* dmatrix) {
    const index D = shape().D, Dp = shape().padded_D(), size = shape().matrix_size();
    const auto left = layout_.below(middle);
    T *dleft = pairs(level), *dright = dleft + size;
    form_matrix(middle, level);
    // Chunks before the oldest key hold nothing.
    const index skipped = start_of((std::max)(first_ - first, index{0}));
    const index tokens = (shape().tokens << level) - skipped;
    T* dends = ends(first) + skipped * Dp;
    T* keys = arrays_.carried + carried(left.slot, skipped);
    if (!finite_) hide_rows(dends, keys, tokens);
    add_product_transposed<Arch>(false, keys, Dp, dends, Dp, dright, Dp, D, D, tokens);
    for (index c = 0; c < tokens; c += shape().tokens) {
      multiply(dends + c * Dp, matrix_, shape().tokens);
    }
    if (!crossed) return;
    // Transposed, dR = dP L^T and dL = R^T dP are L dP^T and dP^T R.
    if (!finite_ && all_zero(dmatrix, size)) return;
    product<Arch>(head_ + left.matrix, Dp, dmatrix, Dp, dright, Dp, D, D, D, start::add);
    product<Arch>(dmatrix, Dp, matrix_, Dp, dleft, Dp, D, D, D, start::zero);
  }
  // matrix_ becomes that of a right child.
  void form_matrix(index first, index level) {
    if (level == 0) {
      if (plain_[first]) {
        form_chunk_matrix(shape(), layout_.at(head_, first), matrix_);
      } else {
        for (index n = 0; n < shape().matrix_size(); ++n) {
          matrix_[n] = std::numeric_limits<T>::quiet_NaN();
        }
      }
      return;
    }
    const index D = shape().D, Dp = shape().padded_D(), middle = first + (index{1} << (level - 1));
    form_matrix(middle, level - 1);
    product<Arch>(matrix_, Dp, head_ + layout_.below(middle).matrix, Dp, spare_, Dp, D, D, D,
                  start::zero);
    std::swap(matrix_, spare_);
  }

  // `sealed`: ends_ holds the gradient of the chunk's keys at its end; dmatrix, if any, that of its
  // matrix.
  void finish_chunk(index c, bool sealed, const T* dmatrix) {
    const index C = shape().tokens, Dp = shape().padded_D();
    const chunk_rows<T> chunk = this->chunk(c), to = rows_of(gradients_, c);
    const T* dends = ends(c);
    if (!plain_[c]) {
      for (index j = 0; j < C && sealed; ++j) adjoint_->pass_key_grad(chunk, j, dends + j * Dp, to);
      if (dmatrix == nullptr || all_zero(dmatrix, shape().matrix_size())) return;
      // A path through all of the chunk.
      for (index s = 0; s < C; ++s) {
        to.beta[s] = std::numeric_limits<T>::quiet_NaN();
        for (index d = 0; d < Dp; ++d) to.minus_w[s * Dp + d] = to.beta[s];
      }
      return;
    }
    if (!finite_) hide_keys(chunk, to, sealed ? dends : nullptr);
    if (sealed) adjoint_->carry_grad(chunk, dends, to);
    if (dmatrix != nullptr) adjoint_->matrix_grad(chunk, dmatrix, to);
    adjoint_->solve_grad(chunk, layout_.at(head_, c).minus_w, to);
  }
  // Keys that no gradient comes to may be anything: they are read as 0.
  void hide_keys(const chunk_rows<T>& chunk, const chunk_rows<T>& to, const T* dends) {
    const index C = shape().tokens, Dp = shape().padded_D(), Cp = shape().padded_tokens();
    for (index j = 0; j < C; ++j) {
      if (!all_zero(to.keys + j * Dp, shape().D)) continue;
      if (dends != nullptr && !all_zero(dends + j * Dp, shape().D)) continue;
      zero(chunk.keys + j * Dp, Dp);
      zero(chunk.solved + (Dp + j) * Cp, Cp);
    }
  }
  void hide_rows(const T* gradients, T* rows, index count) const {
    const index Dp = shape().padded_D();
    for (index n = 0; n < count; ++n) {
      if (all_zero(gradients + n * Dp, shape().D)) zero(rows + n * Dp, Dp);
    }
  }

  // rows <- rows matrix
  void multiply(T* rows, const T* matrix, index count) {
    const index D = shape().D, Dp = shape().padded_D();
    zero(moved_, count * Dp);
    add_product<Arch>(!finite_, rows, Dp, matrix, Dp, moved_, Dp, count, D, D);
    for (index n = 0; n < count * Dp; ++n) rows[n] = moved_[n];
  }
  T* ends(index c) const noexcept {
    return ends_ + start_of(c - block_begin_) * shape().padded_D();
  }
  T* pairs(index level) const noexcept { return pairs_ + 2 * level * shape().matrix_size(); }
  static void zero(T* x, index n) noexcept {
    for (index i = 0; i < n; ++i) x[i] = T(0);
  }
  static void add(const T* from, T* to, index n) noexcept {
    for (index i = 0; i < n; ++i) to[i] += from[i];
  }
  static bool all_zero(const T* x, index n) noexcept {
    bool all = true;
    for (index i = 0; i < n; ++i) all = all && x[i] == 0;
    return all;
  }

  layout_type layout_;
  path_reach reach_;
  index first_ = 0, sealed_ = 0;  // chunks [first_, sealed_) have nodes, sealed_ has rows
  const T* head_ = nullptr;
  const bool* plain_ = nullptr;
  bool finite_ = true;
  path_arrays<T> arrays_{}, gradients_{};

  // While it finishes.
  index block_begin_ = 0;
  T *ends_ = nullptr, *matrix_ = nullptr, *spare_ = nullptr, *pairs_ = nullptr, *moved_ = nullptr;
  chunk_adjoint<T, Arch>* adjoint_ = nullptr;
};

}  // namespace heed::inline HEED_ABI::kernel
