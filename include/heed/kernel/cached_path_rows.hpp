// The rows of PaTH over a cache; part of cached_path.hpp.
#pragma once

#include "heed/kernel/cached_path.hpp"

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
    runs_ = c.memory.template take<run>(count_);
    along_ = c.memory.template take<T>(heads_ * count_ * shape.padded_tokens());
    walked_ = c.memory.template take<T>(heads_ * count_ * shape.padded_D());
    dust_ = c.memory.template take<T>(heads_ * count_);
    moved_ = c.memory.template take<T>((std::max)(heads_, count_) * shape.padded_D());
    for (index r = 0; r < count_; ++r) {
      const index chunk = (row_ + r) / cache_chunk;
      if (run_count_ == 0 || runs_[run_count_ - 1].chunk != chunk) {
        runs_[run_count_++] = {r, r, chunk, chunk};
      }
      runs_[run_count_ - 1].end = r + 1;
    }
    for (index g = 0; g < heads_; ++g) {
      for (index n = 0; n < run_count_; ++n) meet_chunk(g, runs_[n]);
    }
  }

  // The oldest key that a panel may reach which ends before `newest`.
  index panel_begin(index newest, index panel) const noexcept {
    index begin = (newest - 1) / panel * panel;
    for (index n = 0; n < run_count_; ++n) {
      const index key = (std::min)(newest - 1, row_ + runs_[n].end - 1);
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
      run& at = runs_[n];
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
    const run& at = runs_[0];
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
      const run& at = runs_[n];
      const index begin = (std::max)(p.begin, at.begin), end = (std::min)(p.end, at.end);
      if (begin >= end) continue;
      if (p.key(p.first) >= at.edge * cache_chunk) {
        own_chunk(p, g, bias, at, begin, end);
      } else {
        older_node(p, g, bias, at.edge, begin, end);
      }
    }
  }

 private:
  struct run {
    index begin, end;  // rows of the block
    index chunk;       // where they stand
    index edge;        // their queries have been carried to the start of this chunk
  };

  index token(index r) const noexcept { return row_ + r; }
  index kv(index g) const noexcept { return (head_ + g) / source_->group_ - source_->kv_head_; }
  area_type area(index g, index chunk) const noexcept {
    return source_->area_of(kv(g), chunk / chunks);
  }
  bool plain(index g, index chunk) const noexcept {
    return area(g, chunk).plain(source_->layout_)[chunk % chunks];
  }

  // What rows need of their own chunk: -q w for its tokens up to the row's own, and the query at
  // the chunk's start.
  void meet_chunk(index g, const run& at) {
    const layout_type& layout = source_->layout_;
    const auto& shape = layout.chunk;
    const index D = shape.D, Dp = shape.padded_D(), Cp = shape.padded_tokens();
    const index start = at.chunk * cache_chunk, local = at.chunk % chunks;
    const auto chunk = layout.at(static_cast<const T*>(area(g, at.chunk).data), local);
    const T* q = queries_ + (g * count_ + at.begin) * D;
    T* along = along_ + (g * count_ + at.begin) * Cp;
    T* walked = walked_ + (g * count_ + at.begin) * Dp;
    const index rows = at.end - at.begin;
    copy_rows<Arch>(q, D, index{1}, rows, D, walked, Dp);
    for (index r = 0; r < rows; ++r) {
      dust_[g * count_ + at.begin + r] = dust_of<Arch>(walked + r * Dp, Dp);
    }
    if (!plain(g, at.chunk)) {
      for (index r = 0; r < rows; ++r) {
        pass_chunk_backwards<Arch>(shape, chunk, token(at.begin + r) - start, walked + r * Dp,
                                   along + r * Cp);
      }
      return;
    }
    const index depth = token(at.end - 1) - start + 1;
    times_packed<Arch>(q, D, chunk.minus_w, D, along, Cp, rows, depth);
    for (index r = 0; r < rows; ++r) {
      for (index s = token(at.begin + r) - start + 1; s < Cp; ++s) along[r * Cp + s] = T(0);
    }
    if (start > 0) {
      product<Arch>(along, Cp, chunk.y, Dp, walked, Dp, rows, D, depth, start::add);
    }
  }

  // The run's queries are multiplied by the matrix of the node below its edge.
  void walk(const run& at) {
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
    times_area_keys(p, g, bias, q, Dp, source_->area_of(kv(g), number).data + node.keys, at, begin,
                    end, last);
  }
  // Rows of queries times a run of packed chunks, from its column `at` on.
  void times_area_keys(const panel<T, Arch>& p, index g, const T* bias, const T* q, index ldq,
                       const T* keys, index at, index begin, index end, index last) const {
    const index D = source_->layout_.chunk.D;
    for (index c = p.first; c < last;) {
      const index within = at % strip, n = (std::min)(strip - within, last - c);
      product<Arch>(q, ldq, keys + (at - within) * D + within, strip, p.line(g, begin) + c,
                    p.row_stride, end - begin, n, D,
                    bias == nullptr ? start::zero : start::row_bias,
                    bias == nullptr ? nullptr : bias + (c - p.first));
      c += n;
      at += n;
    }
  }

  void own_chunk(const panel<T, Arch>& p, index g, const T* bias, const run& at, index begin,
                 index end) const {
    const layout_type& layout = source_->layout_;
    const auto& shape = layout.chunk;
    const index D = shape.D, Cp = shape.padded_tokens(), start = at.chunk * cache_chunk;
    const index last = (std::min)(p.last, token(end - 1) + 1 - p.column);
    if (last <= p.first) return;
    const T* along = along_ + (g * count_ + begin) * Cp;
    if (!plain(g, at.chunk)) {
      for (index r = begin; r < end; ++r, along += Cp) {
        for (index c = p.first; c < last; ++c) {
          p.line(g, r)[c] = along[p.key(c) - start] + (bias == nullptr ? T(0) : bias[c - p.first]);
        }
      }
      return;
    }
    const index first = p.key(p.first) - start;
    const auto chunk = layout.at(area(g, at.chunk).data, at.chunk % chunks);
    times_area_keys(p, g, bias, queries_ + (g * count_ + begin) * D, D, chunk.keys, first, begin,
                    end, last);
    product<Arch>(along + first, Cp, chunk.m + first * Cp + first, Cp, p.line(g, begin) + p.first,
                  p.row_stride, end - begin, last - p.first, token(end - 1) - start + 1 - first,
                  start::add);
  }

  const cached_path* source_;
  const T* queries_;
  index head_, heads_, row_, count_;  // row_: token of row 0
  run* runs_;
  index run_count_ = 0;
  T* along_;   // [heads][count][padded tokens]
  T* walked_;  // [heads][count][padded D]: queries at their run's edge
  T* moved_;
  T* dust_;  // [heads][count]: what counts as 0 in a row's query
};

}  // namespace heed::inline HEED_ABI::kernel
