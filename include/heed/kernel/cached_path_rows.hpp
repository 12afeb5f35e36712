// The rows of PaTH over a cache; part of cached_path.hpp.
#pragma once

#include "heed/kernel/cached_path.hpp"
#include "heed/kernel/path_walk.hpp"

namespace heed::inline HEED_ABI::kernel {

// Rows walk back over chunks, nodes and blocks, in runs of those that stand in one chunk.
template <class T, class Arch, class Stored, class Path>
class cached_path<T, Arch, Stored, Path>::rows_type {
 public:
  rows_type(const cached_path& source, const rows_context<T, Arch>& c, T* queries)
      : source_(&source),
        queries_(queries),
        head_(c.head),
        heads_(c.heads),
        row_(c.row + source.position_),
        count_(c.count) {
    const auto& shape = source.layout_.chunk;
    runs_ = c.memory.template take<path_run>(count_);
    along_ = c.memory.template take<T>(heads_ * count_ * shape.padded_tokens());
    walked_ = c.memory.template take<T>(heads_ * count_ * shape.padded_D());
    dust_ = c.memory.template take<T>(heads_ * count_);
    moved_ = c.memory.template take<T>((std::max)(heads_, count_) * shape.padded_D());
    for (index r = 0; r < count_; ++r) {
      const index chunk = (row_ + r) / cache_chunk;
      if (run_count_ == 0 || runs_[run_count_ - 1].chunk != chunk) {
        runs_[run_count_++] = {r, r, chunk, chunk, 0};
      }
      runs_[run_count_ - 1].end = r + 1;
      runs_[run_count_ - 1].newest = row_ + r;
    }
    for (index g = 0; g < heads_; ++g) {
      for (index n = 0; n < run_count_; ++n) {
        const rows_in_chunk<T, Arch> own = own_chunk(g, runs_[n]);
        const index first = g * count_ + runs_[n].begin;
        own.meet(own.first_key > 0, walked_ + first * shape.padded_D(), dust_ + first);
      }
    }
  }

  // The oldest key that a panel may reach which ends before `newest`.
  index panel_begin(index newest, index panel) const noexcept {
    index begin = (newest - 1) / panel * panel;
    for (index n = 0; n < run_count_; ++n) {
      const index key = (std::min)(newest - 1, runs_[n].newest);
      if (key < 0) continue;
      index edge = runs_[n].edge;
      if (key / block < runs_[n].chunk / chunks) {
        edge = key / block * chunks;  // in a block that is read as a whole
      }
      while (edge * cache_chunk > key) edge = source_->below(edge);
      begin = (std::max)(begin, edge * cache_chunk);
    }
    return begin;
  }
  // Queries walk back to the node that the panel's keys belong to.
  void enter(index key_begin, index) {
    for (index n = 0; n < run_count_; ++n) {
      path_run& at = runs_[n];
      while (at.edge * cache_chunk > key_begin) {
        const index next = source_->below(at.edge);
        if (next * cache_chunk <= key_begin) break;
        walk(at);
        at.edge = next;
      }
    }
  }
  void advance(index, index) const noexcept {}

  // One row of each of `heads` heads from head g on, which share their keys.
  void scores(const panel<T, Arch>& p, index g, index heads, const T* bias) const {
    const path_run& at = runs_[0];
    if (at.edge > 0 && at.edge % chunks == 0 && p.key(p.first) < at.edge * cache_chunk) {
      const index Dp = source_->layout_.chunk.padded_D();
      source_->keys_.times(walked_ + g * Dp, Dp, source_->kv_head_ + kv(g), p.key(p.first),
                           p.last - p.first, p.line(g, p.begin) + p.first, p.head_stride, heads,
                           bias);
      return;
    }
    for (index h = g; h < g + heads; ++h) scores(p, h, bias);
  }
  void scores(const panel<T, Arch>& p, index g, const T* bias) const {
    for (index n = 0; n < run_count_; ++n) {
      const path_run& at = runs_[n];
      const index begin = (std::max)(p.begin, at.begin), end = (std::min)(p.end, at.end);
      if (begin >= end) continue;
      if (p.key(p.first) >= at.edge * cache_chunk) {
        const index last = (std::min)(p.last, token(end - 1) + 1 - p.column);
        if (last > p.first) own_chunk(g, at).scores(p, g, bias, begin, end, last);
      } else {
        older_node(p, g, bias, at.edge, begin, end);
      }
    }
  }

 private:
  index token(index r) const noexcept { return row_ + r; }
  index kv(index g) const noexcept { return (head_ + g) / source_->group_ - source_->kv_head_; }
  area_type area(index g, index chunk) const noexcept {
    return source_->area_of(kv(g), chunk / chunks);
  }
  bool plain(index g, index chunk) const noexcept {
    return area(g, chunk).plain(source_->layout_)[chunk % chunks];
  }

  rows_in_chunk<T, Arch> own_chunk(index g, const path_run& at) const {
    const layout_type& layout = source_->layout_;
    const index first = g * count_ + at.begin;
    return {layout.chunk,
            layout.at(static_cast<const T*>(area(g, at.chunk).data), at.chunk % chunks),
            plain(g, at.chunk),
            at.chunk * cache_chunk,
            at.begin,
            at.end - at.begin,
            token(at.begin),
            at.newest,
            queries_ + first * layout.chunk.D,
            along_ + first * layout.chunk.padded_tokens()};
  }

  // The run's queries are multiplied by the matrix of the node below its edge.
  void walk(const path_run& at) {
    const auto& shape = source_->layout_.chunk;
    const index Dp = shape.padded_D(), rows = at.end - at.begin;
    const index number = (at.edge - 1) / chunks, local = at.edge - number * chunks;
    for (index g = 0; g < heads_; ++g) {
      const T* matrix = local == chunks ? cached_path::matrix(*source_->store_, *source_->problem_,
                                                              source_->kv_head_ + kv(g), number)
                                        : source_->area_of(kv(g), number).data +
                                              source_->layout_.below(local).matrix;
      T* q = walked_ + (g * count_ + at.begin) * Dp;
      if (rows <= few_rows) {
        const T* none = nullptr;
        stream_product<Arch, 1, false>(q, Dp, matrix, Dp, moved_, Dp, rows, shape.D, shape.D, none);
      } else {
        product<Arch>(q, Dp, matrix, Dp, moved_, Dp, rows, shape.D, shape.D, start::zero);
      }
      for (index r = 0; r < rows; ++r) {
        copy_without_dust<Arch>(moved_ + r * Dp, q + r * Dp, Dp, dust_[g * count_ + at.begin + r]);
      }
    }
  }

  void older_node(const panel<T, Arch>& p, index g, const T* bias, index edge, index begin,
                  index end) const {
    const index Dp = source_->layout_.chunk.padded_D();
    const index number = (edge - 1) / chunks, local = edge - number * chunks;
    const T* q = walked_ + (g * count_ + begin) * Dp;
    const index last = (std::min)(p.last, edge * cache_chunk - p.column);
    if (local == chunks) {
      source_->keys_.times(q, Dp, source_->kv_head_ + kv(g), p.key(p.first), last - p.first,
                           p.line(g, begin) + p.first, p.row_stride, end - begin, bias);
      return;
    }
    const auto node = source_->layout_.below(local);
    const index at = p.key(p.first) - (number * chunks + node.first_chunk) * cache_chunk;
    times_chunks(p, g, bias, source_->layout_.chunk, q, Dp,
                 source_->area_of(kv(g), number).data + node.keys, at, begin, end, last);
  }
  const cached_path* source_;
  const T* queries_;
  index head_, heads_, row_, count_;  // row_: token of row 0
  path_run* runs_;
  index run_count_ = 0;
  T* along_;   // [heads][count][padded tokens]
  T* walked_;  // [heads][count][padded D]: queries at their run's edge
  T* moved_;
  T* dust_;  // [heads][count]: what counts as 0 in a row's query
};

}  // namespace heed::inline HEED_ABI::kernel
