// PaTH over a cache.
//
// The keys of a block of 1024 tokens are carried to its end once, when it is full: that is what
// rows of later tokens read, and the block's matrix takes their queries on. Rows within a block
// read what path_blocks.hpp makes of it, from the raw keys, w and beta beside: for the newest block
// it is kept and grows with the tokens, for others that rows stand in it is made again. So nothing
// that is stored is written twice, and rolling back is forgetting.
#pragma once

#include "heed/kernel/cached_keys.hpp"
#include "heed/kernel/path_blocks.hpp"

namespace heed::inline HEED_ABI::kernel {

// The parts of one block of one key head, in memory of its own.
template <class T, class Arch>
struct path_area {
  static constexpr index block = 1024;

  static path_layout<T, Arch> layout(index D) noexcept { return {block, D, cache_chunk, block}; }
  // In elements of T.
  static index size(index D) noexcept {
    const path_layout<T, Arch> l = layout(D);
    return round_up(l.total() + 2 * l.chunks(), 64);
  }
  T* data = nullptr;

  T* dust(const path_layout<T, Arch>& l) const noexcept { return data + l.total(); }
  bool* plain(const path_layout<T, Arch>& l) const noexcept {
    return reinterpret_cast<bool*>(dust(l) + l.chunks());
  }
};

template <class T, class Arch, class Stored, class Path>
class cached_path {
  using area_type = path_area<T, Arch>;
  using layout_type = path_layout<T, Arch>;
  static constexpr index block = area_type::block;
  static constexpr index chunks = block / cache_chunk;
  static constexpr index strip = strip_width<T, Arch>;

 public:
  // Raw keys, as rows; and matrices, [block][Hkv][D][padded D].
  static constexpr std::size_t lanes = 2;
  static constexpr index range = 65536;  // each walks from the newest token
  static index granule(const Path&) noexcept { return block; }
  static std::size_t chunk_bytes(const problem& p, std::size_t n) noexcept {
    const index size = n == 0 ? cache_chunk * p.D : (matrix_size(p.D) + chunks - 1) / chunks;
    return static_cast<std::size_t>(p.Hkv * size) * sizeof(T);
  }
  static std::size_t aside_bytes(const problem& p) noexcept {
    return static_cast<std::size_t>(p.Hkv * area_type::size(p.D)) * sizeof(T);
  }

  static void store(const Path&, const token_store& s, const cached_keys<T, Arch, Stored>&,
                    const problem& p, index kv_head, index key, index count, const T* rows) {
    for (index j = 0; j < count; ++j) {
      T* to = s.template lane<T>(first_lane) + ((key + j) * p.Hkv + kv_head) * p.D;
      for (index d = 0; d < p.D; ++d) to[d] = rows[j * p.D + d];
    }
  }
  // The newest block's parts. Blocks that have been filled on the way are sealed.
  static void refresh(const Path& path, const token_store& s, const problem& p, index tokens,
                      workspace& scratch) {
    token_store::range& known = s.aside_range;
    if (tokens == 0 || known.end == tokens) return;
    // Blocks that were full before are sealed, whether their parts are still there or not.
    index start = (std::min)(s.length(), tokens - 1) / block * block;
    if (known.end == known.begin + block) start = known.end;
    for (; start < tokens; start += block) {
      const index end = (std::min)(tokens, start + block);
      const bool goes_on = known.begin == start && known.end > start;
      const index done = goes_on ? (known.end - 1 - start) / cache_chunk : 0;
      for (index h = 0; h < p.Hkv; ++h) {
        const area_type area{s.template aside<T>() + h * area_type::size(p.D)};
        build(path, s, p, h, start, end, done, area, scratch);
        if (end == start + block) seal(s, p, h, start, area);
      }
      known = {start, end};
    }
  }

  explicit cached_path(const cached_source_context<T, Arch, Stored, Path>& c)
      : path_(c.stage),
        store_(&c.store),
        problem_(&c.plan.problem),
        keys_(c.keys),
        layout_(area_type::layout(c.plan.problem.D)),
        position_(c.plan.sequence.position),
        kv_head_(c.kv_head),
        kv_heads_(c.kv_heads),
        group_(c.plan.problem.group()) {
    const index newest = c.plan.sequence.S - 1;
    first_block_ = position_ / block;
    open_block_ = newest / block;
  }
  void take(workspace& memory) {
    made_ = memory.take<T>(tasks() * area_type::size(layout_.chunk.D));
  }
  // Blocks that rows stand in, but for the newest.
  index tasks() const noexcept { return kv_heads_ * (open_block_ - first_block_); }
  void prepare(index task, workspace& scratch) const {
    const index start = (first_block_ + task / kv_heads_) * block;
    build(path_, *store_, *problem_, kv_head_ + task % kv_heads_, start, start + block, 0,
          made_area(task), scratch);
  }

  class rows_type;
  rows_type rows(const rows_context<T, Arch>& context, T* queries) const {
    return rows_type(*this, context, queries);
  }

 private:
  static constexpr std::size_t first_lane = cache_lane::scores;

  static index matrix_size(index D) noexcept { return D * round_up(D, width<T, Arch>); }
  static T* matrix(const token_store& s, const problem& p, index kv_head, index number) noexcept {
    const auto stride = static_cast<index>(chunk_bytes(p, 1) / sizeof(T)) * chunks;
    return s.template lane<T>(first_lane + 1) + number * stride + kv_head * matrix_size(p.D);
  }

  // One key head's tokens of a block as the builder asks for them.
  struct tokens_of {
    const Path& path;
    const token_store& store;
    const problem& p;
    index kv_head, start;

    void keys(index from, index to, T* rows, index ld) const {
      copy_rows<Arch>(raw(from), p.Hkv * p.D, index{1}, to - from, p.D, rows, ld);
    }
    void pack_keys(index from, index to, T*, index, T* packed) const {
      pack_columns<Arch>(raw(from), p.Hkv * p.D, index{1}, to - from, p.D, packed);
    }
    void transformations(index from, index to, T* minus_w, index ld, T* beta) const {
      copy_rows<Arch>(path.w.pointer(index{0}, start + from, kv_head, index{0}), path.w.stride(1),
                      path.w.stride(3), to - from, p.D, minus_w, ld, T(-1));
      for (index t = from; t < to; ++t) beta[t - from] = path.beta(index{0}, start + t, kv_head);
    }

   private:
    const T* raw(index t) const noexcept {
      return store.template lane<T>(first_lane) + ((start + t) * p.Hkv + kv_head) * p.D;
    }
  };
  // Chunks of tokens [start, end) from chunk `done` on. A row may stand at every token, so that
  // every token is crossed, and the last one of a full block.
  static void build(const Path& path, const token_store& s, const problem& p, index kv_head,
                    index start, index end, index done, const area_type& area, workspace& scratch) {
    const workspace::scope taken(scratch);
    const layout_type layout = area_type::layout(p.D);
    const path_reach reach{-1, end == start + block ? block + 1 : end - start};
    const tokens_of tokens{path, s, p, kv_head, start};
    path_block_builder<T, Arch, tokens_of>(layout, reach, tokens, area.data, area.plain(layout),
                                           scratch, area.dust(layout))
        .build_chunks(done, layout.chunks());
  }
  // Keys and matrix at the end of a full block go to where they stay.
  static void seal(const token_store& s, const problem& p, index kv_head, index start,
                   const area_type& area) {
    const layout_type layout = area_type::layout(p.D);
    const auto whole = layout.below(chunks);
    const cached_keys<T, Arch, Stored> keys{s.template lane<Stored>(cache_lane::keys),
                                            s.capacity() * p.D, p.D};
    for (index c = 0; c < chunks; ++c) {
      keys.store_chunk(kv_head, start + c * cache_chunk,
                       area.data + whole.keys + c * layout.chunk.columns_size());
    }
    T* to = matrix(s, p, kv_head, start / block);
    for (index n = 0; n < matrix_size(p.D); ++n) to[n] = area.data[whole.matrix + n];
  }

  area_type made_area(index task) const noexcept {
    return {made_ + task * area_type::size(layout_.chunk.D)};
  }
  area_type area_of(index kv, index number) const noexcept {
    if (number == open_block_) {
      return {store_->template aside<T>() + (kv_head_ + kv) * area_type::size(layout_.chunk.D)};
    }
    return made_area((number - first_block_) * kv_heads_ + kv);
  }
  // The first chunk of the node that ends at the start of chunk `edge`.
  index below(index edge) const noexcept {
    const index number = (edge - 1) / chunks;
    return number * chunks + layout_.below(edge - number * chunks).first_chunk;
  }

  Path path_;
  const token_store* store_;
  const problem* problem_;
  cached_keys<T, Arch, Stored> keys_;
  layout_type layout_;
  index position_, kv_head_, kv_heads_, group_;
  index first_block_ = 0, open_block_ = 0;
  T* made_ = nullptr;
};

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
    const T* data = area(g, at.chunk).data;
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
        pass_chunk_backwards<Arch>(shape, data + layout.keys(local), data + layout.solved(local),
                                   token(at.begin + r) - start, walked + r * Dp, along + r * Cp);
      }
      return;
    }
    const index depth = token(at.end - 1) - start + 1;
    times_packed<Arch>(q, D, data + layout.minus_w(local), D, along, Cp, rows, depth);
    for (index r = 0; r < rows; ++r) {
      for (index s = token(at.begin + r) - start + 1; s < Cp; ++s) along[r * Cp + s] = T(0);
    }
    if (start > 0) {
      product<Arch>(along, Cp, data + layout.solved(local), shape.ld(), walked, Dp, rows, D, depth,
                    start::add);
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
    const T* data = area(g, at.chunk).data;
    const index first = p.key(p.first) - start, local = at.chunk % chunks;
    times_area_keys(p, g, bias, queries_ + (g * count_ + begin) * D, D, data + layout.keys(local),
                    first, begin, end, last);
    const T* solved = data + layout.solved(local) + shape.padded_D();
    product<Arch>(along + first, Cp, solved + first * shape.ld() + first, shape.ld(),
                  p.line(g, begin) + p.first, p.row_stride, end - begin, last - p.first,
                  token(end - 1) - start + 1 - first, start::add);
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
