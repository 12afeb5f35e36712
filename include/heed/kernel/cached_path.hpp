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

}  // namespace heed::inline HEED_ABI::kernel

#include "heed/kernel/cached_path_rows.hpp"
