// PaTH as a source of scores: rows that walk back over chunks and blocks (path_blocks.hpp).
#pragma once

#include <span>

#include "heed/kernel/dot.hpp"
#include "heed/kernel/path_blocks.hpp"
#include "heed/kernel/path_walk.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class Loader, class Path>
class path_source {
  using layout_type = path_layout<T, Arch>;

 public:
  path_source(const Path& path, const source_context<T, Arch>& context, const Loader& loader)
      : path_(path),
        loader_(&loader),
        layout_(context.plan.sequence.S, context.plan.problem.D, path.chunk, path.block),
        reach_(path_reach::of({context.plan.mask, context.plan.sequence})),
        kv_head_(context.kv_head),
        kv_heads_(context.kv_heads),
        group_(context.plan.problem.group()) {}

  static std::size_t bytes(const Path& path, const problem& p, const sequence& s,
                           index kv_heads) noexcept {
    const layout_type layout(s.S, p.D, path.chunk, path.block);
    return static_cast<std::size_t>(kv_heads * layout.total()) * sizeof(T);
  }
  void take(workspace& memory) {
    data_ = memory.take<T>(kv_heads_ * layout_.total());
    plain_ = memory.take<bool>(kv_heads_ * layout_.all_chunks);
  }
  index tasks() const noexcept { return kv_heads_ * layout_.blocks; }
  index keys_begin(index n) const noexcept { return n * layout_.block_tokens(); }
  void prepare(index task, workspace& scratch) const {
    const index head = task / layout_.blocks;
    const workspace::scope scope(scratch);
    const tokens_of tokens{*this, kv_head_ + head};
    path_block_builder<T, Arch, tokens_of>(layout_, reach_, tokens, head_data(head),
                                           head_plain(head), scratch)
        .build(task % layout_.blocks);
  }

  // What the gradient reads.
  const layout_type& layout() const noexcept { return layout_; }
  const path_reach& reach() const noexcept { return reach_; }
  const T* head(index n) const noexcept { return head_data(n); }
  const bool* plain_chunks(index n) const noexcept { return head_plain(n); }
  const sequence& sequence_of() const noexcept { return loader_->context.sequence; }
  auto tokens(index n) const noexcept { return tokens_of{*this, kv_head_ + n}; }

  class rows_type {
   public:
    // The oldest key that a panel may reach which ends before `newest`.
    index panel_begin(index newest, index panel) const noexcept {
      const index size = source_->layout_.chunk.tokens;
      index begin = (newest - 1) / panel * panel;
      for (index n = 0; n < run_count_; ++n) {
        const path_run& run = runs_[n];
        const index key = (std::min)(newest - 1, run.newest);
        if (key < source_->reach_.first) continue;
        index edge = run.edge;
        while (edge * size > key) edge = source_->layout_.below(edge).first_chunk;
        begin = (std::max)(begin, edge * size);
      }
      return begin;
    }

    // Queries walk back to the node that the panel's keys belong to.
    void enter(index key_begin, index key_end) {
      if (key_end <= source_->reach_.first) return;
      const index key = (std::max)(key_begin, source_->reach_.first);
      const index size = source_->layout_.chunk.tokens;
      for (index n = 0; n < run_count_;) {
        const index edge = runs_[n].edge;
        index same = n + 1;
        while (same < run_count_ && runs_[same].edge == edge &&
               runs_[same].begin == runs_[same - 1].end) {
          ++same;
        }
        index to = edge;
        if (edge * size > key) {
          for (;;) {
            const index next = source_->layout_.below(to).first_chunk;
            if (next * size <= key) break;
            walk(to, runs_[n].begin, runs_[same - 1].end);
            to = next;
          }
        }
        for (; n < same; ++n) runs_[n].edge = to;
      }
    }

    void scores(const panel<T, Arch>& p, index g, const T* bias) const {
      each_part(p, [&](const path_run* run, const part& at) {
        if (run == nullptr) {
          older_node(p, g, bias, at);
        } else {
          own_chunk(g, *run).scores(p, g, bias, at.begin, at.end, at.last);
        }
      });
    }
    void advance(index, index) const noexcept {}

    // Rows [begin, end) of a panel that read keys of one chunk or node, up to column `last`.
    struct part {
      index begin, end;
      index edge;  // their queries stand at the start of this chunk
      index last;
    };
    // f(run, part) with the run whose own chunk is read, or nullptr: then it is the node below
    // part.edge, and rows of several runs may be in one part.
    template <class F>
    void each_part(const panel<T, Arch>& p, const F& f) const {
      const index size = source_->layout_.chunk.tokens;
      for (index n = 0; n < run_count_; ++n) {
        const path_run& run = runs_[n];
        if (run.end <= p.begin) continue;
        if (run.begin >= p.end) break;
        part at{(std::max)(p.begin, run.begin), (std::min)(p.end, run.end), run.edge, 0};
        if (p.key(p.first) >= run.edge * size) {
          at.last = (std::min)(p.last, token(at.end - 1) + 1 - p.column);
          if (at.last > p.first) f(&run, at);
          continue;
        }
        // A run that has not left its chunk may stand at the same edge as one that came there.
        while (n + 1 < run_count_ && runs_[n + 1].begin == runs_[n].end &&
               runs_[n + 1].begin < p.end && runs_[n + 1].edge == run.edge) {
          ++n;
        }
        at.end = (std::min)(p.end, runs_[n].end);
        at.last = (std::min)(p.last, run.edge * size - p.column);
        f(nullptr, at);
      }
    }

    // For the way back.
    std::span<const path_run> runs() const noexcept {
      return {runs_, static_cast<std::size_t>(run_count_)};
    }
    index token(index r) const noexcept {
      return path_reach::token(source_->sequence_of(), row_ + r);
    }
    const T* along(index g, index r) const noexcept {
      return along_ + (g * count_ + r) * source_->layout_.chunk.padded_tokens();
    }
    const T* walked(index g, index r) const noexcept {
      return walked_ + (g * count_ + r) * source_->layout_.chunk.padded_D();
    }
    // From here on, every walk is written down.
    void record(path_journal<T>* journal) noexcept { journal_ = journal; }
    // Takes the last walk back.
    typename path_journal<T>::walk undo() noexcept {
      const auto walk = journal_->walks[--journal_->count];
      journal_->free = walk.queries;
      copy_walked(walk, [](T* kept, T* query) { *query = *kept; });
      for (index n = 0; n < run_count_; ++n) {
        if (runs_[n].begin >= walk.begin && runs_[n].end <= walk.end) runs_[n].edge = walk.from;
      }
      return walk;
    }

   private:
    friend path_source;

    const T* head(index g) const noexcept {
      return source_->head_data((head_ + g) / source_->group_ - source_->kv_head_);
    }
    bool plain(index g, index chunk) const noexcept {
      return source_->head_plain((head_ + g) / source_->group_ - source_->kv_head_)[chunk];
    }

    void find_runs() {
      const path_reach& reach = source_->reach_;
      for (index r = 0; r < count_; ++r) {
        const index t = token(r);
        if (t < reach.first || t >= reach.last) continue;
        const index chunk = t / source_->layout_.chunk.tokens;
        if (run_count_ == 0 || runs_[run_count_ - 1].chunk != chunk ||
            runs_[run_count_ - 1].end != r) {
          runs_[run_count_++] = {r, r, chunk, chunk, t};
        }
        path_run& run = runs_[run_count_ - 1];
        run.end = r + 1;
        run.newest = t;
      }
    }

    rows_in_chunk<T, Arch> own_chunk(index g, const path_run& run) const {
      const auto& shape = source_->layout_.chunk;
      const index first = g * count_ + run.begin;
      return {shape,
              source_->layout_.at(head(g), run.chunk),
              plain(g, run.chunk),
              run.chunk * shape.tokens,
              run.begin,
              run.end - run.begin,
              token(run.begin),
              run.newest,
              queries_ + first * shape.D,
              along_ + first * shape.padded_tokens()};
    }
    void meet_chunk(index g, const path_run& run) {
      const index first = g * count_ + run.begin;
      const rows_in_chunk<T, Arch> own = own_chunk(g, run);
      own.meet(own.first_key > source_->reach_.first,
               walked_ + first * source_->layout_.chunk.padded_D(), dust_ + first);
    }
    // f(copy, query) for every number of the queries of a walk.
    template <class F>
    void copy_walked(const typename path_journal<T>::walk& walk, const F& f) const {
      const index Dp = source_->layout_.chunk.padded_D(), n = (walk.end - walk.begin) * Dp;
      for (index g = 0; g < heads_; ++g) {
        T *kept = walk.queries + g * n, *query = walked_ + (g * count_ + walk.begin) * Dp;
        for (index i = 0; i < n; ++i) f(kept + i, query + i);
      }
    }
    // Rows [begin, end) are multiplied by the matrix of the node below an edge.
    void walk(index edge, index begin, index end) {
      const auto& shape = source_->layout_.chunk;
      const index Dp = shape.padded_D(), rows = end - begin;
      const index matrix = source_->layout_.below(edge).matrix;
      if (journal_ != nullptr) {
        const typename path_journal<T>::walk w{begin, end, edge, journal_->free};
        journal_->walks[journal_->count++] = w;
        journal_->free += heads_ * rows * Dp;
        copy_walked(w, [](T* kept, T* query) { *kept = *query; });
      }
      for (index g = 0; g < heads_; ++g) {
        for (index r = begin; r < end; r += rows_at_once) {
          const index n = (std::min)(rows_at_once, end - r);
          T* q = walked_ + (g * count_ + r) * Dp;
          product<Arch>(q, Dp, head(g) + matrix, Dp, moved_, Dp, n, shape.D, shape.D, start::zero);
          for (index i = 0; i < n; ++i) {
            copy_without_dust<Arch>(moved_ + i * Dp, q + i * Dp, Dp, dust_[g * count_ + r + i]);
          }
        }
      }
    }

    void older_node(const panel<T, Arch>& p, index g, const T* bias, const part& at) const {
      const auto& shape = source_->layout_.chunk;
      const auto node = source_->layout_.below(at.edge);
      times_chunks(p, g, bias, shape, walked(g, at.begin), shape.padded_D(), head(g) + node.keys,
                   p.key(p.first) - node.first_chunk * shape.tokens, at.begin, at.end, at.last);
    }

    // Rows whose queries are moved in step, and do not leave the first-level cache meanwhile.
    static constexpr index rows_at_once = 4 * rows_per_tile;

    const path_source* source_ = nullptr;
    const T* queries_ = nullptr;
    index head_ = 0, heads_ = 0, row_ = 0, count_ = 0;
    path_run* runs_ = nullptr;
    index run_count_ = 0;
    T* along_ = nullptr;   // [heads][count][padded_tokens]
    T* walked_ = nullptr;  // [heads][count][padded_D]: queries at their run's edge
    T* moved_ = nullptr;   // [rows_at_once][padded_D]
    T* dust_ = nullptr;    // [heads][count]: what counts as 0 in a row's query
    path_journal<T>* journal_ = nullptr;
  };

  rows_type rows(const rows_context<T, Arch>& context, T* queries) const {
    rows_type r;
    r.source_ = this;
    r.queries_ = queries;
    r.head_ = context.head;
    r.heads_ = context.heads;
    r.row_ = context.row;
    r.count_ = context.count;
    const auto& shape = layout_.chunk;
    r.runs_ = context.memory.template take<path_run>(context.count);
    r.along_ =
        context.memory.template take<T>(context.heads * context.count * shape.padded_tokens());
    r.walked_ = context.memory.template take<T>(context.heads * context.count * shape.padded_D());
    r.dust_ = context.memory.template take<T>(context.heads * context.count);
    r.moved_ = context.memory.template take<T>(rows_type::rows_at_once * shape.padded_D());
    r.find_runs();
    for (index g = 0; g < context.heads; ++g) {
      for (index n = 0; n < r.run_count_; ++n) r.meet_chunk(g, r.runs_[n]);
    }
    return r;
  }

 private:
  // One key head's tokens as the builder asks for them.
  struct tokens_of {
    const path_source& source;
    index kv_head;

    void keys(index from, index to, T* rows, index ld) const {
      source.loader_->load(kv_head, from, to, rows, ld);
    }
    void pack_keys(index from, index to, T* rows, index ld, T* packed) const {
      const index D = source.layout_.chunk.D;
      if constexpr (Loader::plain) {
        const auto& k = source.loader_->context.inputs.k;
        pack_columns<Arch>(source.loader_->raw(kv_head, from), k.stride(1), k.stride(3), to - from,
                           D, packed);
      } else {
        keys(from, to, rows, ld);
        pack_columns<Arch>(rows, ld, index{1}, to - from, D, packed);
      }
    }
    void transformations(index from, index to, T* minus_w, index ld, T* beta) const {
      const sequence& s = source.sequence_of();
      const auto& w = source.path_.w;
      const auto& b = source.path_.beta;
      copy_rows<Arch>(w.pointer(s.batch, s.first_key + from, kv_head, index{0}), w.stride(1),
                      w.stride(3), to - from, source.layout_.chunk.D, minus_w, ld, T(-1));
      for (index t = from; t < to; ++t) beta[t - from] = b(s.batch, s.first_key + t, kv_head);
    }
  };

  T* head_data(index head) const noexcept { return data_ + head * layout_.total(); }
  bool* head_plain(index head) const noexcept { return plain_ + head * layout_.all_chunks; }

  Path path_;
  const Loader* loader_;
  layout_type layout_;
  path_reach reach_;
  index kv_head_, kv_heads_, group_;
  T* data_ = nullptr;
  bool* plain_ = nullptr;
};

}  // namespace heed::inline HEED_ABI::kernel
