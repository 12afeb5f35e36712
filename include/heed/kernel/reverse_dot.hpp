// The adjoint of the plain dot product, and with it what a stage of place scores offers the reverse
// sweep: source_gradient(source, gradient_type, source_context, loader) -> Gradient, one per
// gradient owner. A stage without tensors of its own gets an empty value as gradient_type.
//
//   take(workspace&, wanted)   takes memory, sets the sums to 0; wanted: which gradients are asked
//   for rows(source_rows, rows_context, T* queries, head_rows dqueries) -> Rows
//                              dqueries: gradient of `queries` (scaled, behind the input stages),
//                              to be added to
//   keys(workspace&) -> head_rows of [kv_heads][S][D]
//                              when all row blocks are done, if keys are wanted: the gradient of
//                              what the loader loaded. Gradients of the stage's own tensors are to
//                              be added to their places here
//   its Rows, for one row block:
//     keep(panels)             the panels, newest first, before anything has been entered: in case
//                              that carries have to be kept on a way through them
//     restart(measuring)       a reverse sweep begins: the source moves to the oldest panel, as far
//                              as it is not there. Measuring: no gradients will be asked for in it
//     recall(n)                panel n is next, oldest first: puts back its carry; then the
//                              source's enter() and scores() are called as in the forward direction
//     queries_grad(p, g, careful)  the panel's `data` is the gradient of scores(p, g): adds the
//                              queries' part
//     keys_grad(p, g, careful)  the same for the keys' part, called once all strips of rows have
//                              been there, for some rows and columns at a time
//     retreat(key_begin, key_end)  the reverse sweep leaves these columns
//     finish(careful)          behind the newest panel, but in a sweep that measures
//
// `careful`: something that is not finite is near. Entries of the panel that are 0 must not meet
// it.
#pragma once

#include "heed/kernel/dot.hpp"
#include "heed/kernel/prune.hpp"
#include "heed/kernel/reverse.hpp"

namespace heed::inline HEED_ABI::kernel {

struct wanted_gradients {
  bool queries = false, keys = false;
};

// C += A B, weights A that are 0 left out. Row r and depth k of A at a[r * row_step + k * step].
template <class T>
void product_of_weights(const T* a, index row_step, index step, const T* b, index ldb, T* c,
                        index ldc, index rows, index cols, index depth) {
  for (index r = 0; r < rows; ++r) {
    for (index k = 0; k < depth; ++k) {
      const T weight = a[r * row_step + k * step];
      if (weight == 0) continue;
      for (index d = 0; d < cols; ++d) c[r * ldc + d] += weight * b[k * ldb + d];
    }
  }
}
template <class Arch, class T>
void add_product(bool careful, const T* a, index lda, const T* b, index ldb, T* c, index ldc,
                 index rows, index cols, index depth) {
  if (careful) {
    product_of_weights(a, lda, index{1}, b, ldb, c, ldc, rows, cols, depth);
  } else {
    product<Arch>(a, lda, b, ldb, c, ldc, rows, cols, depth, start::add);
  }
}
template <class Arch, class T>
void add_product_transposed(bool careful, const T* a, index lda, const T* b, index ldb, T* c,
                            index ldc, index rows, index cols, index depth) {
  if (careful) {
    product_of_weights(a, index{1}, lda, b, ldb, c, ldc, rows, cols, depth);
    return;
  }
  // As many rows of B at a time as fit into the first-level cache beside A.
  constexpr index step = 60;
  for (index k = 0; k < depth; k += step) {
    product_transposed<Arch>(a + k * lda, lda, b + k * ldb, ldb, c, ldc, rows, cols,
                             (std::min)(step, depth - k), start::add);
  }
}

template <class T, class Arch, class Loader>
class dot_gradient {
 public:
  dot_gradient(const source_context<T, Arch>& context, const Loader& loader)
      : loader_(&loader),
        D_(context.plan.problem.D),
        ld_(round_up(D_, width<T, Arch>)),
        S_(context.plan.sequence.S),
        kv_head_(context.kv_head),
        kv_heads_(context.kv_heads),
        group_(context.plan.problem.group()) {}

  void take(workspace& memory, wanted_gradients wanted) {
    wanted_ = wanted;
    if (wanted.queries) take_rows(memory);
    if (!wanted.keys) return;
    sums_ = {memory.take<T>(kv_heads_ * S_ * ld_), S_ * ld_, ld_};
    for (index n = 0; n < kv_heads_ * S_ * ld_; ++n) sums_.data[n] = T(0);
  }
  head_rows<T> keys(workspace&) const noexcept { return sums_; }

  class rows_type {
   public:
    void keep(std::span<const key_range>) const noexcept {}
    void restart(bool) const noexcept {}
    void recall(std::size_t) const noexcept {}
    // score = <query, key>:  dquery += dscore key
    void queries_grad(const panel<T, Arch>& p, index g, bool careful) const {
      if (!own_->wanted_.queries) return;
      const index kv = kv_of(p.head + g);
      add_product<Arch>(careful, p.line(g, p.begin) + p.first, p.row_stride,
                        own_->keys_.row(kv, p.key(p.first)), own_->keys_.row_stride,
                        dqueries_.row(g, p.begin), dqueries_.row_stride, p.end - p.begin, own_->D_,
                        p.last - p.first);
    }
    // dkey += dscore query
    void keys_grad(const panel<T, Arch>& p, index g, bool careful) const {
      if (!own_->wanted_.keys) return;
      const index D = own_->D_;
      add_product_transposed<Arch>(careful, p.line(g, p.begin) + p.first, p.row_stride,
                                   queries_ + (g * count_ + p.begin) * D, D,
                                   own_->sums_.row(kv_of(p.head + g), p.key(p.first)), own_->ld_,
                                   p.last - p.first, D, p.end - p.begin);
    }
    void retreat(index, index) const noexcept {}
    void finish(bool) const noexcept {}

   private:
    friend dot_gradient;
    index kv_of(index head) const noexcept { return head / own_->group_ - own_->kv_head_; }

    const dot_gradient* own_ = nullptr;
    const T* queries_ = nullptr;
    index count_ = 0;
    head_rows<T> dqueries_;
  };
  rows_type rows(auto&, const rows_context<T, Arch>& context, const T* queries,
                 const head_rows<T>& dqueries) const {
    rows_type r;
    r.own_ = this;
    r.queries_ = queries;
    r.count_ = context.count;
    r.dqueries_ = dqueries;
    return r;
  }

 private:
  // Keys as rows, behind the input stages. Copied even where they could be read in place: rows far
  // apart would fall into few sets of the cache.
  void take_rows(workspace& memory) {
    keys_ = {memory.take<T>(kv_heads_ * S_ * ld_), S_ * ld_, ld_};
    for (index head = 0; head < kv_heads_ && S_ > 0; ++head) {
      loader_->load(kv_head_ + head, 0, S_, keys_.row(head, 0), ld_);
    }
  }

  const Loader* loader_;
  index D_, ld_, S_, kv_head_, kv_heads_, group_;
  wanted_gradients wanted_;
  head_rows<T> keys_, sums_;
};

}  // namespace heed::inline HEED_ABI::kernel
