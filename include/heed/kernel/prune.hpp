// Leaving out keys that cannot matter: when the sweep of a row block may end early.
//
// The claim: for every row of the block, the exact probabilities of the keys left out sum to at
// most the tolerance asked for. With Z the row's sum of e^L over the keys swept so far, and R that
// over the keys left out, their share is R / (Z + R + sinks) <= R / Z. So it is enough that
//
//   R <= sum over older panels p of n_p e^(U_p) <= tolerance Z
//
// where n_p keys of p are at most visible and U_p bounds the row's logits there. The score of row i
// and key j is at most |q_i| |k_j| (Cauchy-Schwarz) or the caller's bound; each logits stage says
// through ceiling() what it makes of a bound. Bounds per panel are what makes this tight: decay has
// long brought down panels far back, whose number would else count in full. As far as the sum of
// all keys behind a panel is below 1/8 of what is allowed by one bound for all of them, they are
// not looked at one by one, so the cost does not grow with the length of the sequence.
//
// Rounding: bounds are formed in double, from norms that were rounded up. Z is what has to be
// bounded from below. A computed logit L^ of the swept keys differs from L = s + a (score and what
// stages add) by at most d (|s| + |a|), d = (D + 64) eps: a product of D terms that starts from an
// addend, and a few operations more. With |s| <= U, hence |a| <= |L| + U, and m the row's largest
// logit: |L^ - L| <= d (2 U + |m| + 50) for all keys with L > m - 50; the rest are e^-50 of Z. A
// sum of n numbers adds at most n eps, exp itself a few eps. Z is taken to be smaller by a factor
// e^-x with x the sum of these and 0.001.
#pragma once

#include <cmath>
#include <span>

#include "heed/kernel/math.hpp"
#include "heed/kernel/stage_list.hpp"

namespace heed::inline HEED_ABI::kernel {

// Score sources that bound the norms of what they multiply queries with: see dot_source.
template <class SourceRows>
concept bounds_keys = requires(const SourceRows& rows) {
  { rows.key_norm(index{}, index{}, index{}) } -> std::convertible_to<double>;
};

// Whether the norms of queries and keys will be asked for.
template <class List>
bool wants_norms(const List& list) {
  return list.prune.tolerance > 0 && !(list.prune.logit_bound > 0);
}

// Throws shape_error when a list asks for pruning and holds a stage without a bound.
template <class List, class SourceRows>
void check_pruning(const List& list) {
  if (!(list.prune.tolerance > 0)) return;
  const auto refuse = [](const std::string& what) {
    throw shape_error("heed: attend: pruning: " + what +
                      ", so that the probability left out has no bound: leave one of them out");
  };
  if (!bounds_keys<SourceRows> && wants_norms(list)) {
    refuse("the list's mechanism of scores has no norms of keys and there is no logit_bound");
  }
  int number = 0;
  for_each(list.logits, [&](const auto& stage) {
    using Stage = std::remove_cvref_t<decltype(stage)>;
    ++number;
    if (!is_active(stage) || !has_hook<Stage>(hook::forward)) return;
    const geometry g = geometry_of(stage);
    const bool alone = g.rows_above + g.older_cols + g.newer_cols == 0 && g.heads_mixed == 1;
    if (alone && has_hook<Stage>(hook::ceiling)) return;
    refuse("number " + std::to_string(number) +
           " of the list's mechanisms of logits does not bound the logits that it changes");
  });
  if (list.after_softmax) refuse("the list changes probabilities after softmax");
}

// What the keys older than each panel can still add to the rows of one row block.
template <class T, class Arch, class List, class Source, class Logits>
class tail_bounds {
 public:
  // The block's panels, newest first; `scout` are rows objects of their own for the logits stages,
  // which run ahead of the sweep without logits.
  tail_bounds(const List& list, const rows_context<T, Arch>& c, const Source& source,
              const Logits& scout, const T* queries, const row_bounds* visible,
              std::span<const key_range> panels)
      : list_(list), c_(c), source_(source), scout_(scout), panels_(panels) {
    const index all = c.heads * c.count;
    query_norms_ = c.memory.template take<double>(all);
    reference_ = c.memory.template take<double>(all);
    bound_ = c.memory.template take<double>(c.count);
    sees_ = c.memory.template take<bool>(c.count);
    first_row_newest_ = c.newest;
    for (index r = 0; r < c.count; ++r) {
      const row_bounds& b = visible[r];
      sees_[r] = b.lo < b.hi || b.first > c.sequence.key_begin;
      if (sees_[r]) first_row_newest_ = (std::min)(first_row_newest_, (std::max)(b.hi, b.first));
    }
    if (list.prune.logit_bound > 0) return;
    for (index n = 0; n < all; ++n) query_norms_[n] = norm(queries + n * c.problem.D);
  }

  // Whether panels from number n on may be left out. max, sum [heads][count (][width]), shift: the
  // state of the softmax after the panels before; a row's log-sum-exp is max + log(sum) + shift.
  bool negligible(index n, const T* max, const T* sum, const T* shift) {
    if (n == static_cast<index>(panels_.size())) return false;
    if (first_ < 0) {
      if (panel(n - 1).begin >= first_row_newest_ || !all_have_weight(sum)) return false;
      scout_from(n, max, sum, shift);
    }
    // A row that has once passed passes ever after: what is left shrinks and Z grows.
    for (; row_ < c_.heads * c_.count; ++row_) {
      if (sees_[row_ % c_.count] && !row_is_done(n, row_, max, sum, shift)) return false;
    }
    return true;
  }

 private:
  static constexpr index W = width<T, Arch>;
  static constexpr double eps = static_cast<double>(std::numeric_limits<T>::epsilon());

  const key_range& panel(index n) const { return panels_[static_cast<std::size_t>(n)]; }
  double norm(const T* x) const {
    double sum = 0;
    for (index d = 0; d < c_.problem.D; ++d) {
      sum += static_cast<double>(x[d]) * static_cast<double>(x[d]);
    }
    return std::sqrt(sum) * (1 + 64 * eps);
  }
  double key_norm(index g, index begin, index end) const {
    if constexpr (bounds_keys<Source>) {
      if (wants_norms(list_)) return source_.key_norm(g, begin, end);
    }
    return 0;  // there is a logit_bound: check_pruning has seen to it
  }
  // A bound of the scores of row n = g count + r with keys [begin, end).
  double score(index n, double largest_key) const {
    return list_.prune.logit_bound > 0 ? list_.prune.logit_bound : query_norms_[n] * largest_key;
  }
  static double total(const T* lanes) {
    double sum = 0;
    for (index l = 0; l < W; ++l) sum += static_cast<double>(lanes[l]);
    return sum;
  }
  bool all_have_weight(const T* sum) const {
    for (index n = 0; n < c_.heads * c_.count; ++n) {
      if (sees_[n % c_.count] && !(total(sum + n * W) > 0)) return false;
    }
    return true;
  }
  static double log_sum(index n, const T* max, const T* sum, const T* shift) {
    return static_cast<double>(max[n]) + static_cast<double>(shift[n]) +
           std::log(total(sum + n * W));
  }

  bool row_is_done(index n, index row, const T* max, const T* sum, const T* shift) const {
    const index at = (std::min)(n - first_, last_ - first_);
    const double log_z = log_sum(row, max, sum, shift);
    const double largest =
        std::abs(static_cast<double>(max[row]) + static_cast<double>(shift[row]));
    const index newest = panel(0).end, oldest = panels_.back().begin;
    const double u = score(row, key_norm(row / c_.count, oldest, newest));
    const double slack = static_cast<double>(c_.problem.D + 64) * eps * (2 * u + largest + 50) +
                         static_cast<double>(newest - panel(n - 1).begin) * eps + 1e-3;
    const double left = rest_[at * c_.heads * c_.count + row];
    return std::log(left) + reference_[row] <= std::log(list_.prune.tolerance) + log_z - slack;
  }

  // Bounds of panels n, n + 1 ... one by one, until one bound for all the rest is small enough.
  void scout_from(index n, const T* max, const T* sum, const T* shift) {
    const index all = c_.heads * c_.count, count = static_cast<index>(panels_.size());
    for (index row = 0; row < all; ++row) reference_[row] = log_sum(row, max, sum, shift);
    rest_ = c_.memory.template take<double>((count - n + 1) * all);
    first_ = last_ = n;
    for (index edge = panel(0).end;; ++last_) {
      double* rest = rest_ + (last_ - n) * all;
      if (last_ == count) {
        for (index row = 0; row < all; ++row) rest[row] = 0;
        break;
      }
      const key_range keys = panel(last_);
      if (keys.end < edge) leave(keys.end, edge);
      bound_mass({panels_.back().begin, keys.end}, rest);
      if (small(rest)) break;
      bound_mass(keys, rest);
      leave(keys.begin, keys.end);
      edge = keys.begin;
    }
    for (index k = last_ - 1; k >= n; --k) {
      double* rest = rest_ + (k - n) * all;
      for (index row = 0; row < all; ++row) rest[row] += rest[row + all];
    }
  }
  void leave(index begin, index end) {
    for_each_pair(list_.logits, scout_, [&](const auto& stage, auto& rows) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::advance)) {
        if (is_active(stage)) rows.advance(begin, end);
      }
    });
  }
  bool small(const double* rest) const {
    for (index n = 0; n < c_.heads * c_.count; ++n) {
      if (sees_[n % c_.count] && !(rest[n] <= list_.prune.tolerance / 8)) return false;
    }
    return true;
  }
  // mass[n] = number of keys times e^(bound - reference), for every row.
  void bound_mass(key_range keys, double* mass) {
    const std::span<double> bounds(bound_, static_cast<std::size_t>(c_.count));
    const auto number = static_cast<double>(keys.end - keys.begin);
    for (index g = 0; g < c_.heads; ++g) {
      const double largest = key_norm(g, keys.begin, keys.end);
      for (index r = 0; r < c_.count; ++r) bound_[r] = score(g * c_.count + r, largest);
      for_each_pair(list_.logits, scout_, [&](const auto& stage, const auto& rows) {
        if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::ceiling)) {
          if (is_active(stage)) rows.ceiling(g, keys.begin, keys.end, bounds);
        }
      });
      const double* reference = reference_ + g * c_.count;
      constexpr index w = width<double, Arch>;
      using v = vec<double, Arch>;
      double* to = mass + g * c_.count;
      index r = 0;
      for (; r + w <= c_.count; r += w) {
        const v x = load_vec<Arch>(bound_ + r) - load_vec<Arch>(reference + r);
        store_vec<Arch>(to + r, exp<Arch>(x) * v(number));
      }
      for (; r < c_.count; ++r) to[r] = std::exp(bound_[r] - reference[r]) * number;
    }
  }

  const List& list_;
  rows_context<T, Arch> c_;
  const Source& source_;
  Logits scout_;
  std::span<const key_range> panels_;
  double *query_norms_, *reference_, *bound_;
  bool* sees_;
  index first_row_newest_;  // the sweep has met every row's newest key when it is below this
  double* rest_ = nullptr;  // [panels from first_ to last_][heads][count]
  index first_ = -1, last_ = -1;
  index row_ = 0;
};

}  // namespace heed::inline HEED_ABI::kernel
