// The sweep of one row block over its key panels, newest to oldest:
//
//   scores -> logits (each stage in order) -> mask -> online softmax -> probs stages -> times V
//
// Stages that act after softmax need exact probabilities, so with them the block is swept twice:
// once for the log-sum-exp of each row, and once more, from the same first carries, for the rest.
// The logits of the panels that come last are kept from the first sweep for the second, as far as
// there is room.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "heed/kernel/kept_logits.hpp"
#include "heed/kernel/prune.hpp"
#include "heed/kernel/row_ends.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class List, class Source, class Values = value_rows<T>>
class row_block : protected row_ends<T, Arch, List, Source, Values> {
 protected:
  using ends = row_ends<T, Arch, List, Source, Values>;
  static constexpr index W = ends::W;
  static constexpr T infinity = ends::infinity;
  using typename ends::unit_type;
  using panel_type = panel<T, Arch>;

  template <class Stages, class Plans>
  using rows_tuple = decltype(rows_for(std::declval<const Stages&>(), std::declval<const Plans&>(),
                                       std::declval<const rows_context<T, Arch>&>()));
  using logits_rows =
      rows_tuple<typename List::logits_type, decltype(plan_set<T, Arch, List>::logits)>;
  using probs_rows =
      rows_tuple<typename List::probs_type, decltype(plan_set<T, Arch, List>::probs)>;
  using source_rows = typename Source::rows_type;

  // Heads of one row each can share what is read of keys and values; they are all there, then.
  static constexpr bool reads_for_many_heads =
      requires(const source_rows& s, const panel_type& p, const T* bias) {
    s.scores(p, index{}, index{}, bias);
  };

 public:
  row_block(const unit_type& u, index head, index heads, index begin, index end, workspace& scratch)
      : ends(u, head, heads, begin, end, scratch) {
    take_memory();
  }

  void run() {
    sweep_all();
    this->finish();
  }

 protected:  // sweeps of other kinds go the same ways
  // In generic lambdas g++ 12 finds these names through `this` only.
  using ends::bounds_, ends::strips_, ends::ranges_, ends::range_count_, ends::swept_;
  using ends::Dv, ends::first_row, ends::lag, ends::aside, ends::probs_begin, ends::seq;
  using ends::queries_, ends::max_, ends::shift_, ends::sum_, ends::out_, ends::ldo_;
  using ends::u_, ends::scratch_, ends::head_, ends::heads_, ends::row_, ends::count_, ends::whole_;

  void take_memory() {
    ld_ = (u_.sizes.panel + aside() + 2 * W - 1) / W * W;
    const index height = whole_ ? count_ : (std::min)(count_, u_.sizes.strip);
    if (heads_ > 1) {
      strip_panels_ =
          scratch_.template take<panel_type>((count_ + u_.sizes.strip - 1) / u_.sizes.strip);
    }
    // Lines of many heads are read together: they must not all fall into one set of the cache.
    constexpr index page = 4096 / static_cast<index>(sizeof(T));
    head_stride_ = heads_ == 1 ? height * ld_ : round_up(height * ld_, page) + W;
    panel_ = scratch_.template take<T>(heads_ * head_stride_ + W);
    bias_ = scratch_.template take<T>(heads_ * ld_);
    if (u_.list.after_softmax) share_ = scratch_.template take<T>(heads_ * count_);
    if (List::can_settle) settled_ = scratch_.template take<bool>(count_);
  }

  void sweep_all() {
    if (range_count_ > 0) sweep_block(false);
    // A hidden key's NaN or infinity reaches the products as 0 * NaN. That is seen here, and the
    // block is swept again with products that skip weights of 0.
    if (range_count_ > 0 && !this->finite()) sweep_block(true);
  }
  void sweep_block(bool careful) {
    careful_ = careful;
    if (!u_.list.after_softmax) {
      sweep(pass::online);
      return;
    }
    const workspace::scope taken(scratch_);
    kept_.take(heads_, count_ - probs_begin(), (u_.sizes.keys + lag()) / u_.sizes.panel + 3,
               u_.sizes, scratch_);
    sweep(pass::measure);
    for (index g = 0; g < heads_; ++g) {
      for (index r = 0; r < count_; ++r) {
        const index at = g * count_ + r;
        share_[at] = this->share_of(this->total_of(g, r), at);
      }
    }
    sweep(pass::weigh);
  }
  // What the block's rows are made with.
  rows_context<T, Arch> rows_at_hand() const {
    const auto& c = u_.plans.context;
    return {{c.problem, seq(), c.inputs, scratch_},
            head_,
            heads_,
            row_,
            count_,
            ranges_[0].end,
            u_.sizes.panel};
  }
  // Every pass begins with the caller's queries and the stages' first carries.
  void sweep(pass which) {
    const auto mark = scratch_.mark();
    this->load_queries();
    const rows_context<T, Arch> context = rows_at_hand();
    source_rows source = u_.source.rows(context, queries_);
    logits_rows logits = rows_for(u_.list.logits, u_.plans.logits, context);
    probs_rows probs = rows_for(u_.list.probs, u_.plans.probs, context);
    merged_ = merges(logits);
    keep_row_bias(logits);
    const std::span<const key_range> panels = list_panels(source);
    const auto sweep_them = [&](auto&& may_end_after) {
      index edge = panels[0].end;
      for (std::size_t n = 0; n < panels.size(); ++n) {
        const key_range& p = panels[n];
        kept_.turn(which, panels.size() - 1 - n);
        if (p.end < edge) advance(source, logits, probs, p.end, edge);
        sweep_panel(which, source, logits, probs, p, n == 0 && which != pass::weigh);
        edge = p.begin;
        this->swept_ = n + 1;
        if (may_end_after(n)) break;
      }
    };
    if constexpr (List::can_prune) {
      if (u_.list.prune.tolerance > 0) {
        tail_bounds<T, Arch, List, source_rows, logits_rows> tail(
            u_.list, context, source, rows_for(u_.list.logits, u_.plans.logits, context), queries_,
            bounds_, panels);
        sweep_them([&](std::size_t n) {
          return tail.negligible(static_cast<index>(n) + 1, max_, sum_, shift_);
        });
        scratch_.rewind(mark);
        return;
      }
    }
    sweep_them([](std::size_t) { return false; });
    scratch_.rewind(mark);
  }
  // The panels that the block's ranges are swept in, newest first.
  std::span<const key_range> list_panels(const source_rows& source) {
    const auto each = [&](auto&& f) {
      for (index n = 0; n < this->range_count_; ++n) {
        const index oldest = this->ranges_[n].begin - this->lag();
        for (index newest = this->ranges_[n].end; newest > oldest;) {
          const index from =
              (std::max)(oldest, newest > 0 ? source.panel_begin(newest, this->u_.sizes.panel)
                                            : newest - this->u_.sizes.panel);
          f(key_range{from, newest});
          newest = from;
        }
      }
    };
    std::size_t count = 0;
    each([&](key_range) { ++count; });
    auto* panels = scratch_.template take<key_range>(static_cast<index>(count));
    std::size_t n = 0;
    each([&](key_range p) { panels[n++] = p; });
    return {panels, count};
  }

  // Whether every logits stage can start the accumulators of the products instead.
  bool merges(const logits_rows& rows) const {
    bool all = true, any = false;
    for_each_pair(u_.list.logits, rows, [&](const auto& stage, const auto& stage_rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      if constexpr (has_hook<Stage>(hook::column_bias)) {
        any = true;
        if constexpr (has_mergeable<std::remove_cvref_t<decltype(stage_rows)>>) {
          all = all && stage_rows.mergeable();
        }
      } else if constexpr (has_hook<Stage>(hook::forward)) {
        all = false;
      }
    });
    return all && any;
  }

  // Moves every carry over keys [begin, end) without logits. Where logits are ready, those of place
  // logits are not needed any more.
  void advance(source_rows& source, logits_rows& logits, probs_rows& probs, index begin,
               index end) {
    const key_range keys = clip(begin, end);
    if (keys.begin < keys.end && !kept_.ready()) source.advance(keys.begin, keys.end);
    index ahead = 0;
    const auto move = [&](const auto& stage, auto& rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      if constexpr (has_hook<Stage>(hook::advance)) {
        if (!kept_.ready() || Stage::where == place::probs)
          rows.advance(begin + ahead, end + ahead);
      }
      ahead += geometry_of(stage).older_cols;
    };
    for_each_pair(u_.list.logits, logits, move);
    for_each_pair(u_.list.probs, probs, move);
  }
  void enter(source_rows& source, logits_rows& logits, probs_rows& probs, index begin, index end) {
    const key_range keys = clip(begin, end);
    if (keys.begin < keys.end && !kept_.ready()) source.enter(keys.begin, keys.end);
    index ahead = 0;
    const auto announce = [&](const auto& stage, auto& rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      if constexpr (has_hook<Stage>(hook::enter)) {
        const bool idle = Stage::where == place::logits && (merged_ || kept_.ready());
        if (!idle) rows.enter(begin + ahead, end + ahead);
      }
      ahead += geometry_of(stage).older_cols;
    };
    for_each_pair(u_.list.logits, logits, announce);
    for_each_pair(u_.list.probs, probs, announce);
    if (merged_ && !kept_.ready()) fill_bias(logits, begin, end);
  }
  key_range clip(index begin, index end) const noexcept {
    return {std::max<index>(0, begin), (std::min)(seq().S, end)};
  }
  void fill_bias(logits_rows& logits, index begin, index end) {
    for (index n = 0; n < heads_ * ld_; ++n) bias_[n] = 0;
    for_each_pair(u_.list.logits, logits, [&](const auto& stage, auto& rows) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::column_bias)) {
        if (!is_active(stage)) return;
        for (index g = 0; g < this->heads_; ++g) rows.column_bias(g, begin, end, bias_ + g * ld_);
      }
    });
  }

  void sweep_panel(pass which, source_rows& source, logits_rows& logits, probs_rows& probs,
                   const key_range& keys, bool is_first) {
    const auto [begin, end] = keys;
    const bool shown = !u_.visible.has_view() || aside() > 0 || !nothing_shown(begin, end);
    if (shown) enter(source, logits, probs, begin, end);
    const index height = whole_ ? count_ : u_.sizes.strip;
    for (index a = 0; a < count_; a += height) {
      const index b = (std::min)(count_, a + height);
      if (is_first) this->reset_rows(a, b);  // shortly before they are used
      if (shown) sweep_strip(which, source, logits, probs, begin, end, a, b);
    }
    advance(source, logits, probs, begin, end);
  }
  // Whether the boolean view hides a whole panel from the block.
  bool nothing_shown(index begin, index end) const noexcept {
    for (index g = 0; g < heads_; ++g) {
      for (index r = 0; r < count_; ++r) {
        index stride = 0;
        const bool* shown = u_.visible.view_line(head_ + g, row_ + r, stride);
        for (index j = std::max<index>(0, begin); j < (std::min)(seq().S, end); ++j) {
          if (shown[j * stride]) return false;
        }
      }
    }
    return true;
  }

  void sweep_strip(pass which, source_rows& source, logits_rows& logits, probs_rows& probs,
                   index begin, index end, index a, index b) {
    panel_type p;
    p.data = panel_;
    p.head_stride = head_stride_;
    p.row_stride = ld_;
    p.origin = p.begin = a;
    p.end = b;
    p.head = head_;
    p.heads = heads_;
    p.row = row_;
    p.column = begin;
    p.visible = &u_.visible;
    p.bounds = bounds_;
    const index columns = end - begin;
    trim(p, columns);
    if (p.first >= p.last && aside() == 0) return;
    if (!kept_.ready()) {
      each_head(p, columns, [&](const panel_type& s, index g) { find_scores(source, s, g); });
      if (!merged_ && !(which == pass::online && settled(logits, a, b))) {
        run_stages(u_.list.logits, logits, p, columns, u_.list.probs_reach.rows_above);
      }
    }
    p.column = begin + u_.list.logits_reach.older;
    p.begin = (std::max)(a, probs_begin());
    if (p.begin >= b) return;
    each_head(p, columns, [&](const panel_type& s, index g) {
      if (g == 0 && !kept_.ready()) s.hide(-infinity);
      to_probabilities(which, s, g);
      if (which == pass::online) in_tiles(s, [&](const panel_type& t) { times_values(t, g); });
    });
    if (which != pass::weigh) return;
    run_stages(u_.list.probs, probs, p, columns, 0);
    p.begin = (std::max)(a, first_row(0));
    each_head(p, columns, [&](const panel_type& s, index g) {
      if (g == 0) s.hide(0);
      in_tiles(s, [&](const panel_type& t) { times_values(t, g); });
    });
  }
  // A strip of keys that all rows see is read once for all of them.
  void find_scores(const source_rows& source, const panel_type& s, index g) const {
    panel_type t = s;
    t.last = seen_by_all(s);
    if (t.first < t.last) ask_for_scores(source, t, g);
    t.first = std::exchange(t.last, s.last);
    if (t.first < t.last) {
      in_tiles(t, [&](const panel_type& rows) { ask_for_scores(source, rows, g); });
    }
  }
  void ask_for_scores(const source_rows& source, const panel_type& s, index g) const {
    const T* bias = merged_ ? bias_ + g * ld_ + s.first : nullptr;
    if constexpr (reads_for_many_heads) {
      const index group = u_.plans.context.problem.group();
      if (count_ == 1 && heads_ % group == 0 && (group == 1 || !merged_)) {
        if (g % group == 0) source.scores(s, g, group, bias);
        return;
      }
    }
    source.scores(s, g, bias);
  }
  // Whether all that stages do to rows [a, b) from here on is left to the softmax's state.
  bool settled(const logits_rows& logits, index a, index b) {
    if constexpr (List::can_settle) {
      if (settled_[a]) return true;
      T sum = 0;
      for (index g = 0; g < heads_; ++g) {
        for (index r = a; r < b; ++r) {
          if (!constant_from_here(logits, g, r, sum)) return false;
        }
      }
      for (index g = 0; g < heads_; ++g) {
        for (index r = a; r < b; ++r) {
          const index at = g * count_ + r;
          constant_from_here(logits, g, r, shift_[at]);
          leave_out<Arch>(shift_[at], 0,
                          softmax_rows<T>{max_ + at, sum_ + at * W, out_ + at * ldo_, ldo_, ldo_});
        }
      }
      return settled_[a] = true;
    } else {
      return false;
    }
  }
  // Infinite numbers stay with the logits.
  bool constant_from_here(const logits_rows& logits, index g, index r, T& sum) const {
    bool all = true;
    sum = 0;
    for_each_pair(u_.list.logits, logits, [&](const auto& stage, const auto& rows) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::constant_from_here)) {
        if (is_active(stage)) all = all && rows.constant_from_here(g, r, sum);
      }
    });
    return all && sum * 0 == 0;
  }
  // f(panel, head) for a few rows at a time, which stay in the first-level cache from one step to
  // the next, with the columns that these rows see. What f reads of one head's keys or values stays
  // there too, so that all rows of a head come before those of the next.
  template <class F>
  void each_head(const panel_type& p, index columns, F&& f) const {
    index count = 0;
    in_strips(p, columns, [&](const panel_type& s) {
      if (heads_ == 1) {
        f(s, index{0});
      } else {
        std::construct_at(strip_panels_ + count++, s);
      }
    });
    for (index g = 0; g < heads_; ++g) {
      for (index n = 0; n < count; ++n) f(strip_panels_[n], g);
    }
  }
  template <class F>
  void in_strips(panel_type p, index columns, F&& f) const {
    for (const index end = p.end; p.begin < end; p.begin = p.end) {
      p.end = (std::min)(end, p.begin + u_.sizes.strip);
      trim(p, columns);
      if (p.first < p.last) f(p);
    }
  }

  // Where the whole strips of keys end that lie before the newest visible key of every row.
  index seen_by_all(const panel_type& s) const noexcept {
    if (s.all_visible) return s.last;
    index end = s.key(s.last);
    for (index r = s.begin; r < s.end; ++r) end = (std::min)(end, s.bounds[r].hi);
    return std::clamp(end / strip_width<T, Arch> * strip_width<T, Arch> - s.column, s.first,
                      s.last);
  }
  // f(panel) for the rows of one register tile at a time, with the columns that these see, unless
  // all rows see all: the products leave out what is hidden from a whole tile.
  template <class F>
  void in_tiles(const panel_type& s, F&& f) const {
    if (s.all_visible) return f(s);
    panel_type t = s;
    for (; t.begin < s.end; t.begin = t.end) {
      t.end = (std::min)(s.end, t.begin + rows_per_tile);
      const auto seen = s.seen(t.begin, t.end, s.column);
      t.first = seen.from;
      t.last = seen.to;
      if (t.first < t.last) f(t);
    }
  }

  // Cuts a panel's columns to those that some of its rows sees, and notes whether all see all.
  void trim(panel_type& p, index columns) const noexcept {
    // A strip is asked about for every panel: its summary is kept.
    const seen_keys keys =
        whole_ ? this->summarize(p.begin, p.end) : strips_[p.origin / u_.sizes.strip];
    p.first = std::clamp<index>(keys.lo - p.column, 0, columns);
    p.last = std::clamp<index>(keys.hi - p.column, p.first, columns);
    p.all_visible = !u_.visible.has_view() && p.key(p.first) >= keys.latest_lo &&
                    p.key(p.last) <= keys.earliest_hi;
  }

  // Takes a panel through the stages of one place; `later` is how many rows above later places
  // reach.
  template <class Stages, class Rows>
  void run_stages(const Stages& stages, Rows& rows, panel_type& p, index columns, index later) {
    index above = reach_of(stages).rows_above;
    const index a = p.origin;
    for_each_pair(stages, rows, [&](const auto& stage, auto& stage_rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      const geometry reads = geometry_of(stage);
      if constexpr (has_hook<Stage>(hook::forward)) {
        trim(p, columns);
        if (reads.older_cols + reads.newer_cols > 0) widen(p, columns);
        if (reads.reads == geometry::invisible::zero) {
          p.hide(0);
          if (Stage::where == place::logits) infinity_to_zero(p);
        } else if (reads.reads == geometry::invisible::minus_infinity) {
          p.hide(-infinity);
        }
        above -= reads.rows_above;
        p.begin = (std::max)(a, this->first_row(later + above));
        if (p.begin < p.end) stage_rows.forward(p);
        p.column += reads.older_cols;
      }
    });
  }
  // All columns of the panel, the invisible ones included.
  static void widen(panel_type& p, index columns) noexcept {
    p.all_visible = p.all_visible && p.first == 0 && p.last == columns;
    p.first = 0;
    p.last = columns;
  }
  // Whether a line has a -inf, maybe one right behind its columns.
  static bool has_infinity(const panel_type& p, const T* line) noexcept {
    using v = vec<T, Arch>;
    auto found = v(T(0)) == v(-infinity);
    for (index c = p.first; c < p.last; c += W) {
      found = found | (load_vec<Arch>(line + c) == v(-infinity));
    }
    return xsimd::any(found);
  }
  // A visible -inf (a weight of exactly 0) reads as 0 in a stage that mixes entries. There is
  // hardly ever one, so lines are looked at first.
  void infinity_to_zero(const panel_type& p) const noexcept {
    using v = vec<T, Arch>;
    const v hidden(-infinity);
    for (index g = 0; g < heads_; ++g) {
      for (index r = p.begin; r < p.end; ++r) {
        T* line = p.line(g, r);
        if (!has_infinity(p, line)) continue;
        for (index c = p.first; c < p.last; c += W) {
          const v x = load_vec<Arch>(line + c);
          store_vec<Arch>(line + c, xsimd::select(x == hidden, v(T(0)), x));
        }
      }
    }
  }

  void to_probabilities(pass which, const panel_type& p, index g) {
    const index rows = p.end - p.begin, columns = p.last - p.first;
    T* logits = p.line(g, p.begin) + p.first;
    T* kept = kept_.line(g, p.begin - probs_begin());
    const index at = g * count_ + p.begin;
    softmax_rows<T> state{max_ + at, sum_ + at * W, out_ + at * ldo_, ldo_, ldo_};
    if (which == pass::online) {
      softmax_strip<Arch>(logits, ld_, rows, columns, state);
    } else if (which == pass::measure) {
      state.dv = 0;
      measure_strip<Arch>(logits, ld_, rows, columns, state, kept, kept_.row_stride());
    } else if (kept_.ready()) {
      exp_strip<Arch>(kept, kept_.row_stride(), rows, columns, max_ + at, share_ + at, logits, ld_);
    } else {
      exp_strip<Arch>(logits, ld_, rows, columns, max_ + at, share_ + at, logits, ld_);
    }
  }

  void times_values(const panel_type& p, index g) {
    const index rows = p.end - p.begin, columns = p.last - p.first;
    const index group = u_.plans.context.problem.group();
    const index kv = (head_ + g) / group - u_.head / group, key = p.key(p.first);
    if constexpr (reads_for_many_heads) {
      if (count_ == 1 && heads_ % group == 0 && !careful_) {
        if ((g + 1) % group != 0) return;
        const index first = g + 1 - group;
        u_.values.template add_to<Arch>(p.line(first, 0) + p.first, head_stride_, kv, key, columns,
                                        out_ + first * ldo_, ldo_, group, Dv());
        return;
      }
    }
    const T* weights = p.line(g, p.begin) + p.first;
    T* out = out_ + (g * count_ + p.begin) * ldo_;
    if (!careful_) {
      u_.values.template add_to<Arch>(weights, ld_, kv, key, columns, out, ldo_, rows, Dv());
      return;
    }
    for (index r = 0; r < rows; ++r) {
      for (index c = 0; c < columns; ++c) {
        const T weight = weights[r * ld_ + c];
        if (weight == 0) continue;
        for (index d = 0; d < Dv(); ++d)
          out[r * ldo_ + d] += weight * u_.values.element(kv, key + c, d);
      }
    }
  }

  // What merged stages left out of all logits of a row.
  void keep_row_bias(const logits_rows& logits) {
    for (index g = 0; g < heads_; ++g) {
      for (index r = 0; r < count_; ++r) {
        if (List::can_settle) settled_[r] = false;
        T& missing = shift_[g * count_ + r] = 0;
        for_each_pair(u_.list.logits, logits, [&](const auto& stage, const auto& rows) {
          if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::row_bias)) {
            if (merged_ && is_active(stage)) missing += rows.row_bias(g, r);
          }
        });
      }
    }
  }

  bool careful_ = false, merged_ = false;
  index ld_ = 0, head_stride_ = 0;
  panel_type* strip_panels_ = nullptr;
  bool* settled_ = nullptr;  // of a strip's first row: its stages are part of shift_ by now
  T *panel_ = nullptr, *bias_ = nullptr;
  T* share_ = nullptr;  // where stages act after softmax
  kept_logits<T, Arch> kept_;
};

}  // namespace heed::inline HEED_ABI::kernel
