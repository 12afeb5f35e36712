// The two ends of a row block's way: what its rows are and see, and how they are finished.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "heed/kernel/softmax.hpp"
#include "heed/kernel/unit.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class List, class Source, class Values>
class row_ends {
 protected:
  using unit_type = unit<T, Arch, List, Source, Values>;
  static constexpr index W = width<T, Arch>;
  static constexpr T infinity = std::numeric_limits<T>::infinity();

  // Query heads [head, head + heads) of the unit, rows [begin, end) of the sequence.
  row_ends(const unit_type& u, index head, index heads, index begin, index end, workspace& scratch)
      : u_(u),
        head_(head),
        heads_(heads),
        out_begin_(begin),
        scratch_(scratch),
        row_(std::max<index>(0, begin - rows_above())),
        count_(end - row_),
        whole_(heads > 1 || rows_above() > 0) {
    take_memory();
    find_bounds();
    std::fill_n(shift_, heads_ * count_, T(0));
    if (range_count_ == 0) reset_rows(0, count_);
  }

  index rows_above() const noexcept {
    return u_.list.logits_reach.rows_above + u_.list.probs_reach.rows_above;
  }
  index lag() const noexcept { return u_.list.logits_reach.older + u_.list.probs_reach.older; }
  // Columns beside an element's own that stages read.
  index aside() const noexcept {
    return lag() + u_.list.logits_reach.newer + u_.list.probs_reach.newer;
  }
  const sequence& seq() const noexcept { return u_.visible.s; }
  index Dv() const noexcept { return u_.out.extent(3); }
  // First row of the block that a stage must put out when later stages reach `later` rows above.
  index first_row(index later) const noexcept {
    return std::max<index>(0, out_begin_ - later - row_);
  }
  index probs_begin() const noexcept { return first_row(u_.list.probs_reach.rows_above); }

  void take_memory() {
    bounds_ = scratch_.take<row_bounds>(count_);
    queries_ = scratch_.take<T>(heads_ * count_ * u_.plans.context.problem.D);
    max_ = scratch_.take<T>(heads_ * count_);
    shift_ = scratch_.take<T>(heads_ * count_);
    sum_ = scratch_.take<T>(heads_ * count_ * W);
    ldo_ = round_up(Dv(), W);
    out_ = scratch_.take<T>(heads_ * count_ * ldo_);
  }
  // Rows [a, b) have seen no key.
  void reset_rows(index a, index b) noexcept {
    for (index g = 0; g < heads_; ++g) {
      const index at = g * count_ + a, n = b - a;
      std::fill_n(max_ + at, n, -infinity);
      std::fill_n(sum_ + at * W, n * W, T(0));
      std::fill_n(out_ + at * ldo_, n * ldo_, T(0));
    }
  }

  // The keys that some row of the block sees: one run, or two where the first keys stay visible
  // beside a window.
  void find_bounds() {
    key_range main{seq().S, 0}, early{seq().key_begin, 0};
    for (index r = 0; r < count_; ++r) {
      const row_bounds b = bounds_[r] = u_.visible.bounds(row_ + r);
      if (b.hi > b.lo) main = {(std::min)(main.begin, b.lo), (std::max)(main.end, b.hi)};
      if (b.first > seq().key_begin) early.end = (std::max)(early.end, b.first);
    }
    if (!whole_) {
      const index height = u_.sizes.strip;
      strips_ = scratch_.take<seen_keys>((count_ + height - 1) / height);
      for (index a = 0; a < count_; a += height) {
        std::construct_at(strips_ + a / height, summarize(a, (std::min)(count_, a + height)));
      }
    }
    range_count_ = 0;
    if (main.end > main.begin) ranges_[range_count_++] = main;
    if (early.end > early.begin) {
      if (range_count_ == 1 && early.end + aside() >= main.begin) {
        ranges_[0].begin = (std::min)(main.begin, early.begin);
      } else {
        ranges_[range_count_++] = early;
      }
    }
  }

  seen_keys summarize(index begin, index end) const noexcept {
    return seen_keys(bounds_, begin, end, seq().key_begin);
  }

  void load_queries() {
    const auto& c = u_.plans.context;
    const auto& q = c.inputs.q;
    const index D = c.problem.D;
    for (index g = 0; g < heads_; ++g) {
      T* rows = queries_ + g * count_ * D;
      copy_rows<Arch>(q.pointer(seq().batch, seq().first_query + row_, head_ + g, index{0}),
                      q.stride(1), q.stride(3), count_, D, rows, D,
                      static_cast<T>(c.problem.scale));
      for_each_pair(u_.list.inputs, u_.plans.inputs, [&](const auto& stage, const auto& plan) {
        if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::queries)) {
          if (is_active(stage)) plan.queries(head_ + g, row_, row_ + count_, rows, D);
        }
      });
    }
  }

  bool finite() const noexcept {
    for (index g = 0; g < heads_; ++g) {
      const T* lines = out_ + (g * count_ + first_row(0)) * ldo_;
      if (!all_finite<Arch>(lines, (count_ - first_row(0)) * ldo_)) return false;
    }
    return true;
  }

  // A row's sum of exponentials, relative to a maximum; with the logits that stand in the
  // denominator only.
  struct total {
    T max;
    double sum;
    T log() const {
      return sum == 0 ? -infinity : static_cast<T>(static_cast<double>(max) + std::log(sum));
    }
  };
  total total_of(index g, index r) const {
    const index at = g * count_ + r;
    total t{max_[at], 0};
    for (index n = 0; n < W; ++n) t.sum += static_cast<double>(sum_[at * W + n]);
    for_each_pair(u_.list.logits, u_.plans.logits, [&](const auto& stage, const auto& plan) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::denominator)) {
        if (!is_active(stage)) return;
        const T extra = plan.denominator(head_ + g) - shift_[at];
        if (extra == -infinity) return;
        if (extra > t.max) {
          t.sum = t.sum * std::exp(static_cast<double>(t.max) - static_cast<double>(extra)) + 1;
          t.max = extra;
        } else {
          t.sum += std::exp(static_cast<double>(extra) - static_cast<double>(t.max));
        }
      }
    });
    return t;
  }

  // What makes probabilities of a row's exponentials.
  T share_of(const total& t, index at) const {
    const T share = t.max == max_[at] ? T(1) : std::exp(max_[at] - t.max);
    return t.sum == 0 ? T(0) : static_cast<T>(share / t.sum);
  }
  // Divides by the sums and writes the block's own rows.
  void finish() {
    constexpr bool stages_follow = !std::is_same_v<typename List::output_type, std::tuple<>>;
    for (index g = 0; g < heads_; ++g) {
      for (index r = first_row(0); r < count_; ++r) {
        const index at = g * count_ + r;
        T* line = out_ + at * ldo_;
        const total t = total_of(g, r);
        T factor = u_.list.after_softmax ? T(1) : share_of(t, at);
        if constexpr (stages_follow) {
          scale_row<Arch>(line, Dv(), std::exchange(factor, T(1)));
        }
        save_row(g, r, line);
        for_each_pair(u_.list.output, u_.plans.output, [&](const auto& stage, const auto& plan) {
          if (is_active(stage)) plan.output(head_ + g, row_ + r, line, scratch_);
        });
        store_row(g, r, line, factor);
        if (u_.lse.data() != nullptr) {
          u_.lse(seq().batch, out_row(r), head_ + g) = t.log() + shift_[at];
        }
      }
    }
  }
  // For the reverse sweep: a row before the output stages, and in the block's first row how far it
  // was swept.
  void save_row(index g, index r, const T* line) const {
    const index row = seq().first_query + row_ + r;
    if (u_.saved.panels != nullptr && r == first_row(0)) {
      u_.saved.panels[u_.saved.at(seq().batch, row, head_ + g)] = static_cast<std::int32_t>(swept_);
    }
    if (u_.saved.rows == nullptr) return;
    T* to = u_.saved.row(seq().batch, row, head_ + g);
    for (index d = 0; d < Dv(); ++d) to[d] = line[d];
  }
  index out_row(index r) const noexcept { return seq().first_query + row_ + r - u_.first_out; }
  void store_row(index g, index r, const T* line, T factor) {
    if (Dv() == 0 || u_.saved.only) return;
    T* out = u_.out.pointer(seq().batch, out_row(r), head_ + g, index{0});
    const index step = u_.out.stride(3);
    index d = 0;
    if (step == 1) {
      // Rows of one head lie too far apart for the hardware to see them coming.
      constexpr index ahead = 8, cache_line = static_cast<index>(64 / sizeof(T));
      for (; d < Dv() && r + ahead < count_; d += cache_line) {
        prefetch_to_write(out + ahead * u_.out.stride(1) + d);
      }
      for (d = 0; d + W <= Dv(); d += W) {
        store_vec<Arch>(out + d, load_vec<Arch>(line + d) * vec<T, Arch>(factor));
      }
    }
    for (; d < Dv(); ++d) out[d * step] = line[d] * factor;
  }

  const unit_type& u_;
  index head_, heads_, out_begin_;
  workspace& scratch_;
  index row_, count_;
  bool whole_;  // all rows of the block go down the pipeline together
  index ldo_ = 0;
  key_range ranges_[2] = {};
  index range_count_ = 0;
  std::size_t swept_ = 0;        // panels that the last sweep took
  seen_keys* strips_ = nullptr;  // where strips go down the pipeline one by one
  row_bounds* bounds_ = nullptr;
  T *queries_ = nullptr, *out_ = nullptr;
  T *max_ = nullptr, *shift_ = nullptr, *sum_ = nullptr;
};

}  // namespace heed::inline HEED_ABI::kernel
