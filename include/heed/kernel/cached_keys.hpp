// Keys and values of one sequence as a cache stores them, and the plain dot product with them.
//
// Of a chunk of one key/value head: keys as packed columns, [64 / strip][D][strip]; values as rows,
// [64][padded Dv]. The chunks of a head follow one another: memory that is read in one go is read
// fastest.
#pragma once

#include "heed/kernel/dot.hpp"
#include "heed/kernel/stream.hpp"
#include "heed/kernel/token_store.hpp"

namespace heed::inline HEED_ABI::kernel {

// Which lane of a token_store is what. Those of a source of scores come next, then those of the
// mechanisms.
namespace cache_lane {
inline constexpr std::size_t keys = 0, values = 1, queries = 2, scores = 3;
}

// Up to so many rows a product is bound by what it reads of the cache.
inline constexpr index few_rows = 8;
// Up to so many, registers allow for two places at once.
inline constexpr index pair_rows = 2;

// Keys as packed columns.
template <class T, class Arch, class Stored>
struct cached_keys {
  static constexpr index strip = strip_width<T, Arch>;
  static_assert(cache_chunk % strip == 0);

  Stored* data = nullptr;
  index head_size = 0;  // elements from one head to the next
  index D = 0;

  // The strip that holds a key; the key itself is column key % strip.
  Stored* strip_of(index kv_head, index key) const noexcept {
    return data + kv_head * head_size + key / strip * strip * D;
  }
  // Stores rows [n][ld] as keys [key, key + n).
  void store(index kv_head, index key, const T* rows, index ld, index n) const {
    for (index j = 0; j < n;) {
      const index within = (key + j) % strip;
      Stored* to = strip_of(kv_head, key + j);
      const index count = (std::min)(strip - within, n - j);
      if constexpr (std::is_same_v<T, Stored>) {
        if (count == strip) {
          pack_columns<Arch>(rows + j * ld, ld, index{1}, strip, D, to);
          j += count;
          continue;
        }
      }
      for (index c = 0; c < count; ++c) {
        for (index d = 0; d < D; ++d) {
          to[d * strip + within + c] = static_cast<Stored>(rows[(j + c) * ld + d]);
        }
      }
      j += count;
    }
  }
  // A chunk that is packed already.
  void store_chunk(index kv_head, index key, const T* packed) const {
    Stored* to = strip_of(kv_head, key);
    store_as(packed, to, cache_chunk * D);
  }

  // line[rows x count] = q times keys [key, key + count), plus bias in every row unless it is null.
  void times(const T* q, index ldq, index kv_head, index key, index count, T* line, index ldc,
             index rows, const T* bias) const {
    index c = 0;
    if (rows <= pair_rows && key % strip == 0 && count >= 2 * strip) {
      // Both halves at once.
      const index half = count / (2 * strip) * strip;
      for (; c < half; c += strip) {
        stream_product<Arch, 2, false>(q, ldq, strip_of(kv_head, key + c), strip, line + c, ldc,
                                       rows, strip, D, bias == nullptr ? nullptr : bias + c,
                                       {half * D, half});
      }
      c = 2 * half;
    }
    while (c < count) {
      const index within = (key + c) % strip;
      const index n = (std::min)(strip - within, count - c);
      const Stored* columns = strip_of(kv_head, key + c) + within;
      const T* begin = bias == nullptr ? nullptr : bias + c;
      if constexpr (std::is_same_v<T, Stored>) {
        if (rows > few_rows) {
          product<Arch>(q, ldq, columns, strip, line + c, ldc, rows, n, D,
                        bias == nullptr ? start::zero : start::row_bias, begin);
          c += n;
          continue;
        }
      }
      stream_product<Arch, 1, false>(q, ldq, columns, strip, line + c, ldc, rows, n, D, begin);
      c += n;
    }
  }
};

// Values as rows. What row_block takes for value_rows.
template <class T, class Arch, class Stored>
struct cached_values {
  Stored* data = nullptr;        // of the unit's first head
  index head_size = 0, row = 0;  // row: padded Dv

  static index row_size(index Dv) noexcept { return round_up(Dv, width<T, Arch>); }
  Stored* at(index kv, index key) const noexcept { return data + kv * head_size + key * row; }
  T element(index kv, index key, index d) const noexcept { return static_cast<T>(at(kv, key)[d]); }

  template <class A>
  void add_to(const T* weights, index ldw, index kv, index key, index keys, T* out, index ldo,
              index rows, index Dv) const {
    if constexpr (std::is_same_v<T, Stored>) {
      if (rows > few_rows) {
        product<A>(weights, ldw, at(kv, key), row, out, ldo, rows, Dv, keys, start::add);
        return;
      }
    }
    const T* none = nullptr;
    if (rows <= pair_rows && keys >= 2) {
      const index half = keys / 2;
      stream_product<A, 2, true>(weights, ldw, at(kv, key), row, out, ldo, rows, Dv, half, none,
                                 {half * row, half});
      weights += 2 * half;
      key += 2 * half;
      keys -= 2 * half;
      if (keys == 0) return;
    }
    stream_product<A, 1, true>(weights, ldw, at(kv, key), row, out, ldo, rows, Dv, keys, none);
  }
};

// What a source of scores over a cache is made of.
template <class T, class Arch, class Stored, class Stage>
struct cached_source_context {
  const plan_context<T, Arch>& plan;
  const Stage& stage;
  cached_keys<T, Arch, Stored> keys;
  const token_store& store;
  index kv_head, kv_heads;  // the unit's
};

// Where plain queries meet plain keys. What such a source offers:
//
//   range                            keys of a range, where few rows are split over the keys
//   lanes, chunk_bytes(problem, n)   lanes of its own in a token_store
//   aside_bytes(problem)             bytes beside the lanes
//   store(stage, store, keys, problem, kv_head, key, count, rows)    new keys, rows [count][D]
//   refresh(stage, store, problem, tokens, scratch)    works out what goes beside the lanes, now
//   that
//       there are so many tokens; the stage has their tensors
//   take(memory), tasks(), prepare(task, scratch), rows(rows_context, queries)    as in dot.hpp
template <class T, class Arch, class Stored>
class cached_dot {
 public:
  static constexpr std::size_t lanes = 0;
  static constexpr index range = 32768;  // of keys, where they are split
  static index granule(const dot&) noexcept { return cache_chunk; }  // of tokens that are dropped
  static std::size_t chunk_bytes(const problem&, std::size_t) noexcept { return 0; }
  static std::size_t aside_bytes(const problem&) noexcept { return 0; }
  static void store(const dot&, const token_store&, const cached_keys<T, Arch, Stored>& keys,
                    const problem& p, index kv_head, index key, index count, const T* rows) {
    keys.store(kv_head, key, rows, p.D, count);
  }
  static void refresh(const dot&, const token_store&, const problem&, index, workspace&) noexcept {}

  explicit cached_dot(const cached_source_context<T, Arch, Stored, dot>& c)
      : keys_(c.keys), group_(c.plan.problem.group()) {}
  void take(workspace&) const noexcept {}
  static index tasks() noexcept { return 0; }
  static void prepare(index, workspace&) noexcept {}

  class rows_type {
   public:
    static index panel_begin(index newest, index panel) noexcept {
      return (newest - 1) / panel * panel;
    }
    void enter(index, index) const noexcept {}
    void advance(index, index) const noexcept {}
    // One row of each of `heads` heads from head g on, which share their keys.
    void scores(const panel<T, Arch>& p, index g, index heads, const T* bias) const {
      const index D = source_->keys_.D;
      source_->keys_.times(queries_ + g * D, D, (p.head + g) / source_->group_, p.key(p.first),
                           p.last - p.first, p.line(g, p.begin) + p.first, p.head_stride, heads,
                           bias);
    }
    void scores(const panel<T, Arch>& p, index g, const T* bias) const {
      const index D = source_->keys_.D;
      source_->keys_.times(queries_ + (g * count_ + p.begin) * D, D, (p.head + g) / source_->group_,
                           p.key(p.first), p.last - p.first, p.line(g, p.begin) + p.first,
                           p.row_stride, p.end - p.begin, bias);
    }

   private:
    friend cached_dot;
    const cached_dot* source_ = nullptr;
    const T* queries_ = nullptr;
    index count_ = 0;
  };

  rows_type rows(const rows_context<T, Arch>& context, T* queries) const {
    rows_type r;
    r.source_ = this;
    r.queries_ = queries;
    r.count_ = context.count;
    return r;
  }

 private:
  cached_keys<T, Arch, Stored> keys_;
  index group_;
};

}  // namespace heed::inline HEED_ABI::kernel
