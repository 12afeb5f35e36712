// ALiBi: attention with linear biases.
//
//   L_ij <- L_ij + slope_h (j - p_i)      p_i the position of query row i
//
// so that a key loses slope_h for every token of distance; under masks that show newer keys those
// gain. Cost: one addition per score.
// Press et al., Train Short, Test Long, arXiv 2108.12409.
#pragma once

#include <span>
#include <vector>

#include "heed/checks.hpp"

namespace heed::inline HEED_ABI {

// The published slopes. For n heads, n a power of two: 2^(-8 (h + 1) / n). Otherwise the slopes of
// the largest power of two below n, followed by every second slope of the next power of two.
inline std::vector<double> alibi_slopes(index heads) {
  std::vector<double> slopes;
  index n = 1;
  while (2 * n <= heads) n *= 2;
  const auto slope = [](index h, index of) {
    return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(of));
  };
  for (index h = 0; h < std::min(n, heads); ++h) slopes.push_back(slope(h, n));
  for (index h = 0; n + h < heads; ++h) slopes.push_back(slope(2 * h, 2 * n));
  return slopes;
}

struct alibi {
  std::span<const double> slopes = {};  // [Hq]; empty: alibi_slopes(Hq)

  // Throws shape_error unless there is one slope per query head, or none.
  void check(const problem& p) const {
    const auto found = static_cast<index>(slopes.size());
    if (found != 0 && found != p.Hq) {
      throw_axis_error("alibi", "slopes", 0, "query heads", found, std::to_string(p.Hq));
    }
  }
};

}  // namespace heed::inline HEED_ABI
