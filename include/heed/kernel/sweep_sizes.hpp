// How large the blocks of a sweep are.
#pragma once

#include "heed/kernel/sweep.hpp"
#include "heed/options.hpp"

namespace heed::inline HEED_ABI::kernel {

inline constexpr index usual_panel = 128;

// Bytes of logits that each worker keeps between two sweeps: about its part of the last-level
// cache.
inline constexpr index kept_bytes = index{8} << 20;

// Rows and panel so that what one panel of all its heads touches (entries, queries, outputs)
// stays in the second-level cache. Rows that stages read above a block's own are computed again
// for each block, so that blocks with them are taller.
template <class T, class List>
block_sizes choose_sizes(const List& list, const problem& p, const tuning& wish) {
  constexpr index budget = (index{5} << 18) / static_cast<index>(sizeof(T));
  const reach &before = list.logits_reach, &behind = list.probs_reach;
  const index halo = before.rows_above + behind.rows_above;
  const index aside = before.older + before.newer + behind.older + behind.newer;
  // Long panels save the second product loads and stores; where all rows of a block wait for each
  // other, their entries fill the cache instead.
  const bool whole = halo + aside > 0 || list.heads_mixed > 1;
  const index entry = list.heads_mixed * static_cast<index>(sizeof(T));
  index keys = index{1024} / static_cast<index>(sizeof(T));
  if (whole) keys = entry <= 8 ? 2 * usual_panel : entry <= 64 ? usual_panel : usual_panel / 2;
  // A wish for more than there is must not cost memory.
  if (wish.panel > 0) keys = (std::min)(wish.panel, (std::max)(index{1}, p.S));
  const index a_row = list.heads_mixed * (keys + aside + p.D + p.Dv);
  // Four tiles of rows read a strip of keys or values while it is in the first-level cache.
  constexpr index strip = 4 * rows_per_tile;
  index rows = std::clamp(budget / a_row - halo, strip, halo > 0 ? 10 * strip : 8 * strip);
  rows = rows / strip * strip;
  if (wish.rows > 0) rows = (std::min)(wish.rows, (std::max)(index{1}, p.T));
  const index kept = (wish.kept > 0 ? wish.kept : kept_bytes) / static_cast<index>(sizeof(T));
  return {rows, keys, strip, p.S, kept};
}

// As the forward sweep's where that may leave panels out: the same ones are left out here. Else
// taller blocks where rows need no halo, since every block goes through all keys and the gradients
// of keys and values once, and taller strips, which three of the five products take at a time.
template <class T, class List>
block_sizes choose_reverse_sizes(const List& list, const problem& p, const tuning& wish) {
  block_sizes sizes = choose_sizes<T>(list, p, wish);
  const bool halo = list.logits_reach.rows_above + list.probs_reach.rows_above > 0;
  if (list.prune.tolerance > 0) return sizes;
  if (wish.panel == 0) sizes.panel = (std::min)(sizes.panel, usual_panel);
  if (wish.rows == 0 && !halo && list.heads_mixed == 1) sizes.rows *= 2;
  sizes.strip *= 2;
  return sizes;
}

}  // namespace heed::inline HEED_ABI::kernel
