// PaTH's scores, backward: kernel/reverse_dot.hpp says what the reverse sweep asks for.
//
// Queries walk back over nodes going forward; here their gradients walk forward again, from the
// oldest node to the row's own chunk, and at each step the node's matrix gets its gradient from the
// query that stood before it, written down on the way (only where it moves). Gradients of keys are
// collected where they were read: in nodes as these carry them, and in the row's own chunk. There
// the gradients of a row's scores wait for the end of the row block, and are products of whole
// chunks then. The rest is reverse_path_blocks.hpp.
#pragma once

#include "heed/kernel/path_source.hpp"
#include "heed/kernel/reverse_path_blocks.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class Source>
class path_gradient {
  using head_type = path_head_adjoint<T, Arch>;
  using source_rows = typename Source::rows_type;
  using part = typename source_rows::part;

 public:
  // dw [B, S, Hkv, D] and dbeta [B, S, Hkv], either may have no data.
  path_gradient(const Source& source, const source_context<T, Arch>& context,
                const tensor_view<T, 4>& dw, const tensor_view<T, 3>& dbeta)
      : source_(&source),
        kv_head_(context.kv_head),
        kv_heads_(context.kv_heads),
        group_(context.plan.problem.group()),
        dw_(dw),
        dbeta_(dbeta) {}

  void take(workspace& memory, wanted_gradients wanted) {
    collects_ = wanted.keys || dw_.data() != nullptr || dbeta_.data() != nullptr;
    wanted_ = collects_ || wanted.queries;
    if (!wanted_) return;
    heads_ = memory.take<head_type>(kv_heads_);
    const index size = source_->layout().all_chunks * shape().tokens * shape().padded_D();
    dkeys_ = {memory.take<T>(collects_ ? kv_heads_ * size : 0), size, shape().padded_D()};
    for (index n = 0; n < kv_heads_; ++n) {
      head_type& head = *std::construct_at(heads_ + n, source_->layout(), source_->reach());
      head.take(source_->head(n), source_->plain_chunks(n), source_->tokens(n), memory);
      if (collects_) head.collect(dkeys_.row(n, 0), memory);
    }
  }

  head_rows<T> keys(workspace& memory) const {
    if (!collects_) return {};
    for (index n = 0; n < kv_heads_; ++n) {
      heads_[n].finish(memory);
      store(n);
    }
    return dkeys_;
  }

  class rows_type {
   public:
    void keep(std::span<const key_range> panels) {
      panels_ = panels;
      if (panels.empty()) return;
      const auto& layout = own_->source_->layout();
      const index oldest = (std::max)(own_->source_->reach().first, panels.back().begin);
      index walks = 0, rows = 0;
      for (const path_run& run : source_->runs()) {
        for (index edge = run.chunk; edge * layout.chunk.tokens > oldest;) {
          edge = layout.below(edge).first_chunk;
          ++walks;
          rows += run.end - run.begin;
        }
      }
      journal_->walks = memory_->template take<typename path_journal<T>::walk>(walks);
      journal_->free = memory_->template take<T>(context_heads_ * rows * layout.chunk.padded_D());
      source_->record(journal_);
    }
    // The queries walk to the oldest panel.
    void restart(bool measuring) {
      measuring_ = measuring || !own_->wanted_;
      for (const key_range& p : panels_) {
        if (const key_range k = clip(p); k.begin < k.end) source_->enter(k.begin, k.end);
      }
    }
    void recall(std::size_t n) {
      const key_range k = clip(panels_[n]);
      const index first = own_->source_->reach().first;
      if (k.begin < k.end && k.end > first) walk_back((std::max)(k.begin, first));
    }

    // score = <query at the edge, key at the edge>
    void queries_grad(const panel<T, Arch>& p, index g, bool careful) const {
      if (!own_->wanted_) return;
      const auto& shape = own_->shape();
      source_->each_part(p, [&](const path_run* run, const part& at) {
        const T* dscores = p.line(g, at.begin) + p.first;
        const index columns = at.last - p.first, rows = at.end - at.begin;
        T* to = back(g, at.begin);
        if (run != nullptr) {
          to += shape.padded_D() + p.key(p.first) - run->chunk * shape.tokens;
          for (index r = 0; r < rows; ++r) {
            for (index c = 0; c < columns; ++c) to[r * ld_ + c] = dscores[r * p.row_stride + c];
          }
          return;
        }
        const head_type& head = head_of(g);
        add_product<Arch>(careful || !head.finite(), dscores, p.row_stride,
                          head.arrays().carried + carried(p, at), shape.padded_D(), to, ld_, rows,
                          shape.D, columns);
      });
    }
    // Keys of the row's own chunk: finish.
    void keys_grad(const panel<T, Arch>& p, index g, bool careful) const {
      if (!own_->collects_) return;
      const index D = own_->shape().D, Dp = own_->shape().padded_D();
      source_->each_part(p, [&](const path_run* run, const part& at) {
        if (run != nullptr) return;
        const head_type& head = head_of(g);
        add_product_transposed<Arch>(careful || !head.finite(), p.line(g, at.begin) + p.first,
                                     p.row_stride, source_->walked(g, at.begin), Dp,
                                     head.gradients().carried + carried(p, at), Dp,
                                     at.last - p.first, D, at.end - at.begin);
      });
    }
    void retreat(index, index) const noexcept {}

    // Every query is back in its own chunk: meet_chunk and own_chunk.
    void finish(bool careful) {
      walk_back(PTRDIFF_MAX);
      if (!own_->wanted_) return;
      const workspace::scope taken(*memory_);
      const auto& shape = own_->shape();
      chunk_adjoint<T, Arch> adjoint(shape, *memory_);
      T* dalong = memory_->template take<T>(count_ * shape.padded_tokens());
      for (index g = 0; g < context_heads_; ++g) {
        for (const path_run& run : source_->runs()) {
          if (head_of(g).plain(run.chunk)) {
            finish_run(g, run, dalong, careful || !head_of(g).finite());
          } else {
            finish_one_by_one(g, run, adjoint);
          }
        }
      }
    }

   private:
    friend path_gradient;

    const head_type& head_of(index g) const noexcept {
      return own_->heads_[(head_ + g) / own_->group_ - own_->kv_head_];
    }
    key_range clip(const key_range& p) const noexcept {
      return {(std::max)(index{0}, p.begin), (std::min)(own_->source_->sequence_of().S, p.end)};
    }
    // A row of gradients: of the query where it stands, then of the scores of its own chunk.
    T* back(index g, index r) const noexcept { return back_ + (g * count_ + r) * ld_; }
    const T* query(index g, index r) const noexcept {
      return queries_ + (g * count_ + r) * own_->shape().D;
    }
    index carried(const panel<T, Arch>& p, const part& at) const noexcept {
      const auto node = own_->source_->layout().below(at.edge);
      return heads_first()->carried(node.slot,
                                    p.key(p.first) - node.first_chunk * own_->shape().tokens);
    }
    const head_type* heads_first() const noexcept { return own_->heads_; }

    // Takes back the walks that led to edges at `key` or older: its node is newer than they are.
    void walk_back(index key) {
      const index size = own_->shape().tokens;
      while (journal_->count > 0) {
        const auto& last = journal_->walks[journal_->count - 1];
        if (own_->source_->layout().below(last.from).first_chunk * size > key) return;
        if (!measuring_) walk_grad(last);
        source_->undo();
      }
    }
    // walk: q <- q P
    void walk_grad(const typename path_journal<T>::walk& walk) const {
      const index D = own_->shape().D, Dp = own_->shape().padded_D();
      const index rows = walk.end - walk.begin;
      for (index g = 0; g < context_heads_; ++g) {
        const head_type& head = head_of(g);
        const bool careful = strange_ || !head.finite();
        T* gradient = back(g, walk.begin);
        if (own_->collects_) {
          add_product_transposed<Arch>(careful, gradient, ld_, walk.queries + g * rows * Dp, Dp,
                                       head.gradients().matrices + head.matrix(walk.from), Dp, D, D,
                                       rows);
        }
        for (index n = 0; n < rows * Dp; ++n) moved_[n] = T(0);
        add_product<Arch>(careful, gradient, ld_, head.arrays().matrices + head.matrix(walk.from),
                          Dp, moved_, Dp, rows, D, D);
        for (index r = 0; r < rows; ++r) {
          copy_without_dust<Arch>(moved_ + r * Dp, gradient + r * ld_, Dp,
                                  (std::numeric_limits<T>::min)());
        }
      }
    }

    void finish_run(index g, const path_run& run, T* dalong, bool careful) const {
      const auto& shape = own_->shape();
      const index D = shape.D, C = shape.tokens, Dp = shape.padded_D(), Cp = shape.padded_tokens();
      const index rows = run.end - run.begin, start = run.chunk * C;
      const head_type& head = head_of(g);
      const chunk_rows<T> chunk = head.chunk(run.chunk);
      const T *dwalked = back(g, run.begin), *dscores = dwalked + Dp;
      // walked += along Y, where rows leave the chunk;  scores += along M
      const index from = start > own_->source_->reach().first ? 0 : Dp;
      for (index n = 0; n < rows * Cp; ++n) dalong[n] = T(0);
      add_product<Arch>(careful, dwalked + from, ld_, chunk.solved + from * Cp, Cp, dalong, Cp,
                        rows, C, Dp + C - from);
      for (index r = 0; r < rows; ++r) {
        for (index s = source_->token(run.begin + r) - start + 1; s < Cp; ++s) {
          dalong[r * Cp + s] = T(0);
        }
      }
      // walked = q, scores = q k, along = -q w
      T* dqueries = dqueries_.row(g, run.begin);
      const index ldq = dqueries_.row_stride;
      for (index r = 0; r < rows; ++r) {
        for (index d = 0; d < D; ++d) dqueries[r * ldq + d] += dwalked[r * ld_ + d];
      }
      add_product<Arch>(careful, dscores, ld_, chunk.keys, Dp, dqueries, ldq, rows, D, C);
      add_product<Arch>(careful, dalong, Cp, chunk.minus_w, Dp, dqueries, ldq, rows, D, C);
      if (!own_->collects_) return;
      const chunk_rows<T> to = head.gradients(run.chunk);
      add_product_transposed<Arch>(careful, dscores, ld_, query(g, run.begin), D, to.keys, Dp, C, D,
                                   rows);
      add_product_transposed<Arch>(careful, dalong, Cp, query(g, run.begin), D, to.minus_w, Dp, C,
                                   D, rows);
      const T* along = source_->along(g, run.begin);
      if (!careful) {
        add_product_transposed<Arch>(false, along, Cp, dwalked + from, ld_, to.solved + from, ld_,
                                     C, Dp + C - from, rows);
        return;
      }
      for (index r = 0; r < rows; ++r) {
        for (index c = from; c < ld_; ++c) {
          const T slope = dwalked[r * ld_ + c];
          for (index s = 0; s < C && slope != 0; ++s) {
            to.solved[s * ld_ + c] += along[r * Cp + s] * slope;
          }
        }
      }
    }
    // pass_one_by_one
    void finish_one_by_one(index g, const path_run& run, chunk_adjoint<T, Arch>& adjoint) const {
      const auto& shape = own_->shape();
      const head_type& head = head_of(g);
      for (index r = run.begin; r < run.end; ++r) {
        T* dquery = back(g, r);
        adjoint.pass_query_grad(head.chunk(run.chunk), source_->token(r) - run.chunk * shape.tokens,
                                query(g, r), dquery + shape.padded_D(), dquery,
                                head.gradients(run.chunk));
        for (index d = 0; d < shape.D; ++d) dqueries_.row(g, r)[d] += dquery[d];
      }
    }

    const path_gradient* own_ = nullptr;
    source_rows* source_ = nullptr;
    const T* queries_ = nullptr;
    head_rows<T> dqueries_;
    index head_ = 0, context_heads_ = 0, count_ = 0, ld_ = 0;
    workspace* memory_ = nullptr;
    std::span<const key_range> panels_;
    path_journal<T>* journal_ = nullptr;
    T* back_ = nullptr;   // [heads][count][ld]
    T* moved_ = nullptr;  // [count][padded_D]
    bool measuring_ = false;
    bool strange_ = false;  // a query is not finite
  };

  rows_type rows(source_rows& source, const rows_context<T, Arch>& context, const T* queries,
                 const head_rows<T>& dqueries) const {
    rows_type r;
    r.own_ = this;
    r.source_ = &source;
    r.queries_ = queries;
    r.dqueries_ = dqueries;
    r.head_ = context.head;
    r.context_heads_ = context.heads;
    r.count_ = context.count;
    r.ld_ = shape().ld();
    r.memory_ = &context.memory;
    r.journal_ = std::construct_at(context.memory.template take<path_journal<T>>(1));
    if (!wanted_) return r;
    r.back_ = context.memory.template take<T>(context.heads * context.count * r.ld_);
    r.moved_ = context.memory.template take<T>(context.count * shape().padded_D());
    for (index n = 0; n < context.heads * context.count * r.ld_; ++n) r.back_[n] = T(0);
    T sum = 0;
    for (index n = 0; n < context.heads * context.count * shape().D; ++n) sum += queries[n] * 0;
    r.strange_ = sum != 0;
    return r;
  }

 private:
  const chunk_shape<T, Arch>& shape() const noexcept { return source_->layout().chunk; }

  // Adds what was found to the caller's views; w is where its negative was.
  void store(index n) const {
    const sequence& s = source_->sequence_of();
    const path_reach& reach = source_->reach();
    const index size = shape().tokens, Dp = shape().padded_D();
    for (index c = reach.first / size; c * size < reach.last; ++c) {
      const chunk_rows<T> from = heads_[n].gradients(c);
      const key_range crossed = crossed_tokens(source_->layout(), reach, c);
      for (index t = crossed.begin; t < crossed.end; ++t) {
        const index at = t - c * size, token = s.first_key + t;
        if (dbeta_.data() != nullptr) dbeta_(s.batch, token, kv_head_ + n) += from.beta[at];
        for (index d = 0; d < shape().D && dw_.data() != nullptr; ++d) {
          dw_(s.batch, token, kv_head_ + n, d) -= from.minus_w[at * Dp + d];
        }
      }
    }
  }

  const Source* source_;
  index kv_head_, kv_heads_, group_;
  tensor_view<T, 4> dw_;
  tensor_view<T, 3> dbeta_;
  bool collects_ = false;  // gradients of keys, w or beta are wanted
  bool wanted_ = false;    // any is
  head_type* heads_ = nullptr;
  head_rows<T> dkeys_;
};

}  // namespace heed::inline HEED_ABI::kernel
