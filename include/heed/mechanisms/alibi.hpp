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
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/panel.hpp"

namespace heed::inline HEED_ABI {

// The published slopes. For n heads, n a power of two: 2^(-8 (h + 1) / n). Otherwise the slopes of
// the largest power of two below n, followed by every second slope of the next power of two.
inline double alibi_slope(index head, index heads) {
  index n = 1;
  while (2 * n <= heads) n *= 2;
  const auto slope = [](index h, index of) {
    return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(of));
  };
  return head < n ? slope(head, n) : slope(2 * (head - n), 2 * n);
}
inline std::vector<double> alibi_slopes(index heads) {
  std::vector<double> slopes;
  for (index h = 0; h < heads; ++h) slopes.push_back(alibi_slope(h, heads));
  return slopes;
}

struct alibi {
  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::plan | hook::rows | hook::forward |
                                hook::column_bias | hook::row_bias | hook::ceiling | hook::adds;

  std::span<const double> slopes = {};  // [Hq]; empty: alibi_slopes(Hq)

  // Throws shape_error unless there is one slope per query head, or none.
  void check(const problem& p) const {
    const auto found = static_cast<index>(slopes.size());
    if (found != 0 && found != p.Hq) {
      throw_axis_error("alibi", "slopes", 0, "query heads", found, std::to_string(p.Hq));
    }
  }

  template <class T, class Arch>
  auto plan(const plan_context<T, Arch>& c) const {
    const index heads = c.problem.Hq;
    T* slope = c.memory.template take<T>(heads);
    for (index h = 0; h < heads; ++h) {
      slope[h] = static_cast<T>(slopes.empty() ? alibi_slope(h, heads)
                                               : slopes[static_cast<std::size_t>(h)]);
    }
    return plan_type<T>{slope};
  }

 private:
  // Per row block. Distances count from `reference`, the position of the block's first row, so that
  // what all rows share stays small.
  template <class T>
  struct rows_type {
    const T* slope;  // of head g at slope[g]
    index heads, reference, count, newest;

    // L_ij <- L_ij + slope_h (j - p_i)
    template <class Arch>
    void forward(const panel<T, Arch>& p) const {
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          T* line = p.line(g, r);
          const index distance = p.column - p.position(r);
          for (index c = p.first; c < p.last; ++c) {
            line[c] += slope[g] * static_cast<T>(distance + c);
          }
        }
      }
    }
    // forward = slope (j - reference) + slope (reference - p_i)
    void column_bias(index g, index begin, index end, T* sum) const {
      for (index j = begin; j < end; ++j)
        sum[j - begin] += slope[g] * static_cast<T>(j - reference);
    }
    T row_bias(index g, index r) const { return slope[g] * static_cast<T>(-r); }
    // The end of the range where slope (j - p_i) is largest; slopes may have been rounded to T.
    void ceiling(index g, index begin, index end, std::span<double> bounds) const {
      const auto s = static_cast<double>(slope[g]);
      const index best = s < 0 ? begin : end - 1;
      for (std::size_t r = 0; r < bounds.size(); ++r) {
        const double added = s * static_cast<double>(best - reference - static_cast<index>(r));
        bounds[r] +=
            added + std::abs(added) * static_cast<double>(std::numeric_limits<T>::epsilon());
      }
    }
    // Not where keys newer than the block would get numbers that swamp the logits' digits.
    bool mergeable() const {
      const index beyond = (std::max)(count, newest - reference);
      for (index g = 0; g < heads; ++g) {
        if (slope[g] * static_cast<T>(beyond) > T(64)) return false;
      }
      return true;
    }
  };
  template <class T>
  struct plan_type {
    const T* slope;
    template <class Arch>
    auto rows(const rows_context<T, Arch>& c) const {
      return rows_type<T>{slope + c.head, c.heads, c.row + c.sequence.position, c.count, c.newest};
    }
  };
};

}  // namespace heed::inline HEED_ABI
