// How PaTH's rows stand on their way back over chunks and nodes, and what they read in the chunk
// where they start: the same for the rows of a call and for those over a cache.
#pragma once

#include "heed/kernel/householder.hpp"
#include "heed/kernel/panel.hpp"

namespace heed::inline HEED_ABI::kernel {

// Runs of rows that stand in one chunk: they walk together. Column panels never straddle a chunk
// or node that some run reads, so one key version serves a whole panel in each run.
struct path_run {
  index begin, end;  // rows of the block
  index chunk;       // where they stand
  index edge;        // their queries have been carried to the start of this chunk
  index newest;      // the newest token of a row
};

// Walks of rows over nodes, and the queries as they were before: what the way back restores.
template <class T>
struct path_journal {
  struct walk {
    index begin, end;  // rows
    index from;        // the edge that they left
    T* queries;        // [heads][end - begin][padded_D]
  };
  walk* walks = nullptr;
  index count = 0;
  T* free = nullptr;  // where the next queries go
};

// Scores of rows [begin, end) of a panel and its columns up to `last`: queries times the keys of a
// run of packed chunks, from the run's column `at` on.
template <class T, class Arch>
void times_chunks(const panel<T, Arch>& p, index g, const T* bias,
                  const chunk_shape<T, Arch>& shape, const T* queries, index ldq, const T* keys,
                  index at, index begin, index end, index last) {
  constexpr index strip = strip_width<T, Arch>;
  for (index c = p.first; c < last;) {
    const index within_chunk = at % shape.tokens, within = within_chunk % strip;
    const index n = (std::min)((std::min)(strip - within, shape.tokens - within_chunk), last - c);
    product<Arch>(queries, ldq,
                  keys + at / shape.tokens * shape.columns_size() +
                      (within_chunk - within) * shape.D + within,
                  strip, p.line(g, begin) + c, p.row_stride, end - begin, n, shape.D,
                  bias == nullptr ? start::zero : start::row_bias,
                  bias == nullptr ? nullptr : bias + (c - p.first));
    c += n;
    at += n;
  }
}

// Rows of one query head and the chunk that they stand in.
template <class T, class Arch>
struct rows_in_chunk {
  const chunk_shape<T, Arch>& shape;
  chunk_data<const T> chunk;
  bool finite;          // the chunk
  index first_key;      // of the chunk
  index row, count;     // rows [row, row + count) of the row block
  index first, newest;  // they stand at tokens first, first + 1, ... but none beyond newest
  const T* queries;     // [count][D]
  T* along;             // [count][padded_tokens]: -q w for tokens up to the row's own, then 0;
                        // where the chunk is not finite, scores

  // Where row number r of these stands in the chunk.
  index place(index r) const noexcept { return (std::min)(first + r, newest) - first_key; }

  // Fills `along`, and dust [count] with what counts as 0 in the queries. walked [count][padded_D]
  // becomes the queries at the chunk's start if they go on from there.
  void meet(bool go_on, T* walked, T* dust) const {
    const index D = shape.D, Dp = shape.padded_D(), Cp = shape.padded_tokens();
    copy_rows<Arch>(queries, D, index{1}, count, D, walked, Dp);
    for (index r = 0; r < count; ++r) dust[r] = dust_of<Arch>(walked + r * Dp, Dp);
    if (!finite) {
      for (index r = 0; r < count; ++r) {
        pass_chunk_backwards<Arch>(shape, chunk, place(r), walked + r * Dp, along + r * Cp);
      }
      return;
    }
    // f(row, rows, depth): a few rows at a time, and the tokens that these cross. The last rows
    // come first: they cross all that others do, in the order of memory.
    const auto each = [&](auto&& f) {
      for (index end = count, n; end > 0; end -= n) {
        n = (end - 1) % (2 * rows_per_tile) + 1;
        f(end - n, n, place(end - 1) + 1);
      }
    };
    each([&](index r, index n, index depth) {
      times_packed<Arch>(queries + r * D, D, chunk.minus_w, D, along + r * Cp, Cp, n, depth);
    });
    for (index r = 0; r < count; ++r) {
      for (index s = place(r) + 1; s < Cp; ++s) along[r * Cp + s] = T(0);
    }
    if (!go_on) return;
    each([&](index r, index n, index depth) {
      product<Arch>(along + r * Cp, Cp, chunk.y, Dp, walked + r * Dp, Dp, n, D, depth, start::add);
    });
  }

  // Scores of rows [begin, end) of a panel and its columns up to `last`.
  void scores(const panel<T, Arch>& p, index g, const T* bias, index begin, index end,
              index last) const {
    const index Cp = shape.padded_tokens(), at = p.key(p.first) - first_key;
    const T* line = along + (begin - row) * Cp;
    if (!finite) {
      for (index r = begin; r < end; ++r, line += Cp) {
        for (index c = p.first; c < last; ++c) {
          p.line(g, r)[c] =
              line[p.key(c) - first_key] + (bias == nullptr ? T(0) : bias[c - p.first]);
        }
      }
      return;
    }
    times_chunks(p, g, bias, shape, queries + (begin - row) * shape.D, shape.D, chunk.keys, at,
                 begin, end, last);
    product<Arch>(line + at, Cp, chunk.m + at * Cp + at, Cp, p.line(g, begin) + p.first,
                  p.row_stride, end - begin, last - p.first, place(end - 1 - row) + 1 - at,
                  start::add);
  }
};

}  // namespace heed::inline HEED_ABI::kernel
