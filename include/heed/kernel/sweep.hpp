// The sweep of one row block over its key panels, newest to oldest:
//
//   scores -> logits (each stage in order) -> mask -> online softmax -> probs stages -> times V
//
// Stages that act after softmax need exact probabilities, so with them the block is swept twice:
// once for the log-sum-exp of each row, and once more, from the same first carries, for the rest.
// The logits of the panels that come last are kept from the first sweep for the second, as far as
// there is room.
#pragma once

#include <cmath>
#include <memory>
#include <utility>

#include "heed/kernel/prune.hpp"
#include "heed/kernel/softmax.hpp"
#include "heed/kernel/stage_list.hpp"
#include "heed/saved.hpp"

namespace heed::inline HEED_ABI::kernel {

// Sizes that hold for a whole call.
struct block_sizes {
  index rows;   // query rows of a block, halo rows not counted
  index panel;  // keys of a panel
  index strip;  // rows that go down the pipeline together where no stage looks at other rows
  index keys;   // that there may be
  index kept;   // logits that the first of two sweeps may leave to the second
};

// Values as the products read them: row-major, padded to whole vectors. One per unit.
template <class T>
struct value_rows {
  const T* data = nullptr;
  index head_stride = 0, row_stride = 0;

  const T* at(index kv_head, index key) const noexcept {
    return data + kv_head * head_stride + key * row_stride;
  }
  T element(index kv_head, index key, index d) const noexcept { return at(kv_head, key)[d]; }
  // out[rows x Dv] += weights[rows x keys] times the values of keys [key, key + keys).
  template <class Arch>
  void add_to(const T* weights, index ldw, index kv_head, index key, index keys, T* out, index ldo,
              index rows, index Dv) const {
    product<Arch>(weights, ldw, at(kv_head, key), row_stride, out, ldo, rows, Dv, keys, start::add);
  }
};

// Heads [head, head + heads) of one sequence, which share keys or mix: what a row block belongs to.
template <class T, class Arch, class List, class Source, class Values = value_rows<T>>
struct unit {
  const List& list;
  const plan_set<T, Arch, List>& plans;
  const visibility& visible;
  const Source& source;
  Values values;  // of the unit's key/value heads
  index head, heads;
  tensor_view<T, 4> out;
  tensor_view<T, 3> lse;
  block_sizes sizes;
  index first_out = 0;  // row of the sequence that out and lse begin with
  saved_view<T> saved = {};
};

template <class T, class Arch, class List, class Source, class Values = value_rows<T>>
class row_block {
 protected:
  using unit_type = unit<T, Arch, List, Source, Values>;
  using panel_type = panel<T, Arch>;
  static constexpr index W = width<T, Arch>;
  static constexpr T infinity = std::numeric_limits<T>::infinity();

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
  // Query heads [head, head + heads) of the unit, rows [begin, end) of the sequence.
  row_block(const unit_type& u, index head, index heads, index begin, index end, workspace& scratch)
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
  }

  void run() {
    sweep_all();
    finish();
  }

 protected:  // sweeps of other kinds go the same ways
  void sweep_all() {
    if (range_count_ > 0) sweep_block(false);
    // A hidden key's NaN or infinity reaches the products as 0 * NaN. That is seen here, and the
    // block is swept again with products that skip weights of 0.
    if (range_count_ > 0 && !finite()) sweep_block(true);
  }
  index rows_above() const noexcept {
    return u_.list.logits_reach.rows_above + u_.list.probs_reach.rows_above;
  }
  index lag() const noexcept { return u_.list.logits_reach.older + u_.list.probs_reach.older; }
  // Whether a stage reads columns beside the element's own.
  bool looks_aside() const noexcept {
    return lag() + u_.list.logits_reach.newer + u_.list.probs_reach.newer > 0;
  }
  const sequence& seq() const noexcept { return u_.visible.s; }
  index Dv() const noexcept { return u_.out.extent(3); }
  // First row of the block that a stage must put out when later stages reach `later` rows above.
  index first_row(index later) const noexcept {
    return std::max<index>(0, out_begin_ - later - row_);
  }
  index probs_begin() const noexcept { return first_row(u_.list.probs_reach.rows_above); }

  void take_memory() {
    const index slack = lag() + u_.list.logits_reach.newer + u_.list.probs_reach.newer;
    ld_ = (u_.sizes.panel + slack + 2 * W - 1) / W * W;
    const index height = whole_ ? count_ : (std::min)(count_, u_.sizes.strip);
    ldo_ = (Dv() + W - 1) / W * W;
    bounds_ = scratch_.take<row_bounds>(count_);
    if (heads_ > 1) {
      strip_panels_ = scratch_.take<panel_type>((count_ + u_.sizes.strip - 1) / u_.sizes.strip);
    }
    queries_ = scratch_.take<T>(heads_ * count_ * u_.plans.context.problem.D);
    // Lines of many heads are read together: they must not all fall into one set of the cache.
    constexpr index page = 4096 / static_cast<index>(sizeof(T));
    head_stride_ = heads_ == 1 ? height * ld_ : round_up(height * ld_, page) + W;
    panel_ = scratch_.take<T>(heads_ * head_stride_ + W);
    bias_ = scratch_.take<T>(heads_ * ld_);
    max_ = scratch_.take<T>(heads_ * count_);
    lse_ = scratch_.take<T>(heads_ * count_);
    shift_ = scratch_.take<T>(heads_ * count_);
    if (u_.list.after_softmax) share_ = scratch_.take<T>(heads_ * count_);
    if (List::can_settle) settled_ = scratch_.take<bool>(count_);
    sum_ = scratch_.take<T>(heads_ * count_ * W);
    out_ = scratch_.take<T>(heads_ * count_ * ldo_);
    reset_state();
  }
  void reset_state() noexcept {
    for (index n = 0; n < heads_ * count_; ++n) {
      max_[n] = -infinity;
      shift_[n] = 0;
    }
    for (index n = 0; n < heads_ * count_ * W; ++n) sum_[n] = 0;
    for (index n = 0; n < heads_ * count_ * ldo_; ++n) out_[n] = 0;
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
      const index gap = lag() + u_.list.logits_reach.newer + u_.list.probs_reach.newer;
      if (range_count_ == 1 && early.end + gap >= main.begin) {
        ranges_[0].begin = (std::min)(main.begin, early.begin);
      } else {
        ranges_[range_count_++] = early;
      }
    }
  }

  void sweep_block(bool careful) {
    careful_ = careful;
    if (careful) reset_state();
    if (!u_.list.after_softmax) {
      sweep(pass::online);
      return;
    }
    const workspace::scope taken(scratch_);
    take_kept();
    sweep(pass::measure);
    for (index g = 0; g < heads_; ++g) {
      for (index r = 0; r < count_; ++r) {
        const index at = g * count_ + r;
        share_[at] = share_of(total_of(g, r), at);
      }
    }
    sweep(pass::weigh);
  }
  void take_kept() {
    kept_.ld = round_up(u_.sizes.panel, W);
    kept_.head_stride = (count_ - probs_begin()) * kept_.ld;
    const index a_panel = heads_ * kept_.head_stride;
    const index most = (u_.sizes.keys + lag()) / u_.sizes.panel + 3;
    kept_.panels = (std::min)(most, u_.sizes.kept / a_panel);
    kept_.data = scratch_.take<T>(kept_.panels * a_panel);
  }
  // Turns to panel number n of `count`.
  void turn_kept(pass which, std::size_t n, std::size_t count) noexcept {
    const auto left = static_cast<index>(count - n);
    const bool any = which != pass::online && left <= kept_.panels;
    kept_.now = any ? kept_.data + (left - 1) * heads_ * kept_.head_stride : nullptr;
    kept_.ready = any && which == pass::weigh;
  }
  T* kept_line(index g, index r) const noexcept {
    return kept_.now + g * kept_.head_stride + (r - probs_begin()) * kept_.ld;
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
    load_queries();
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
        turn_kept(which, n, panels.size());
        if (p.end < edge) advance(source, logits, probs, p.end, edge);
        sweep_panel(which, source, logits, probs, p.begin, p.end);
        edge = p.begin;
        swept_ = n + 1;
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
      for (index n = 0; n < range_count_; ++n) {
        const index oldest = ranges_[n].begin - lag();
        for (index newest = ranges_[n].end; newest > oldest;) {
          const index from =
              (std::max)(oldest, newest > 0 ? source.panel_begin(newest, u_.sizes.panel)
                                            : newest - u_.sizes.panel);
          f(key_range{from, newest});
          newest = from;
        }
      }
    };
    std::size_t count = 0;
    each([&](key_range) { ++count; });
    auto* panels = scratch_.take<key_range>(static_cast<index>(count));
    std::size_t n = 0;
    each([&](key_range p) { panels[n++] = p; });
    return {panels, count};
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
    if (keys.begin < keys.end && !kept_.ready) source.advance(keys.begin, keys.end);
    index ahead = 0;
    const auto move = [&](const auto& stage, auto& rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      if constexpr (has_hook<Stage>(hook::advance)) {
        if (!kept_.ready || Stage::where == place::probs) rows.advance(begin + ahead, end + ahead);
      }
      ahead += geometry_of(stage).older_cols;
    };
    for_each_pair(u_.list.logits, logits, move);
    for_each_pair(u_.list.probs, probs, move);
  }
  void enter(source_rows& source, logits_rows& logits, probs_rows& probs, index begin, index end) {
    const key_range keys = clip(begin, end);
    if (keys.begin < keys.end && !kept_.ready) source.enter(keys.begin, keys.end);
    index ahead = 0;
    const auto announce = [&](const auto& stage, auto& rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      if constexpr (has_hook<Stage>(hook::enter)) {
        const bool idle = Stage::where == place::logits && (merged_ || kept_.ready);
        if (!idle) rows.enter(begin + ahead, end + ahead);
      }
      ahead += geometry_of(stage).older_cols;
    };
    for_each_pair(u_.list.logits, logits, announce);
    for_each_pair(u_.list.probs, probs, announce);
    if (merged_ && !kept_.ready) fill_bias(logits, begin, end);
  }
  key_range clip(index begin, index end) const noexcept {
    return {std::max<index>(0, begin), (std::min)(seq().S, end)};
  }
  void fill_bias(logits_rows& logits, index begin, index end) {
    for (index n = 0; n < heads_ * ld_; ++n) bias_[n] = 0;
    for_each_pair(u_.list.logits, logits, [&](const auto& stage, auto& rows) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::column_bias)) {
        if (!is_active(stage)) return;
        for (index g = 0; g < heads_; ++g) rows.column_bias(g, begin, end, bias_ + g * ld_);
      }
    });
  }

  void sweep_panel(pass which, source_rows& source, logits_rows& logits, probs_rows& probs,
                   index begin, index end) {
    if (!(u_.visible.has_view() && !looks_aside() && nothing_shown(begin, end))) {
      enter(source, logits, probs, begin, end);
      const index height = whole_ ? count_ : u_.sizes.strip;
      for (index a = 0; a < count_; a += height) {
        sweep_strip(which, source, logits, probs, begin, end, a, (std::min)(count_, a + height));
      }
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
    if (p.first >= p.last && !looks_aside()) return;
    if (!kept_.ready) {
      each_head(p, columns, [&](const panel_type& s, index g) { find_scores(source, s, g); });
      if (!merged_ && !(which == pass::online && settled(logits, a, b))) {
        run_stages(u_.list.logits, logits, p, columns, u_.list.probs_reach.rows_above);
      }
    }
    p.column = begin + u_.list.logits_reach.older;
    p.begin = (std::max)(a, probs_begin());
    if (p.begin >= b) return;
    each_head(p, columns, [&](const panel_type& s, index g) {
      if (g == 0 && !kept_.ready) s.hide(-infinity);
      to_probabilities(which, s, g);
      if (which == pass::online) times_values(s, g);
    });
    if (which != pass::weigh) return;
    run_stages(u_.list.probs, probs, p, columns, 0);
    p.begin = (std::max)(a, first_row(0));
    each_head(p, columns, [&](const panel_type& s, index g) {
      if (g == 0) s.hide(0);
      times_values(s, g);
    });
  }
  void find_scores(const source_rows& source, const panel_type& s, index g) const {
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

  seen_keys summarize(index begin, index end) const noexcept {
    return seen_keys(bounds_, begin, end, seq().key_begin);
  }
  // Cuts a panel's columns to those that some of its rows sees, and notes whether all see all.
  void trim(panel_type& p, index columns) const noexcept {
    // A strip is asked about for every panel: its summary is kept.
    const seen_keys keys = whole_ ? summarize(p.begin, p.end) : strips_[p.origin / u_.sizes.strip];
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
        p.begin = (std::max)(a, first_row(later + above));
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
    T* kept = kept_.now == nullptr ? nullptr : kept_line(g, p.begin);
    const index at = g * count_ + p.begin;
    softmax_rows<T> state{max_ + at, sum_ + at * W, out_ + at * ldo_, ldo_, ldo_};
    if (which == pass::online) {
      softmax_strip<Arch>(logits, ld_, rows, columns, state);
    } else if (which == pass::measure) {
      state.dv = 0;
      measure_strip<Arch>(logits, ld_, rows, columns, state, kept, kept_.ld);
    } else if (kept_.ready) {
      exp_strip<Arch>(kept, kept_.ld, rows, columns, max_ + at, share_ + at, logits, ld_);
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

  bool finite() const noexcept {
    for (index g = 0; g < heads_; ++g) {
      const T* lines = out_ + (g * count_ + first_row(0)) * ldo_;
      if (!all_finite<Arch>(lines, (count_ - first_row(0)) * ldo_)) return false;
    }
    return true;
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
  bool careful_ = false, merged_ = false;
  index ld_ = 0, ldo_ = 0, head_stride_ = 0;
  key_range ranges_[2] = {};
  index range_count_ = 0;
  std::size_t swept_ = 0;        // panels that the last sweep took
  seen_keys* strips_ = nullptr;  // where strips go down the pipeline one by one
  row_bounds* bounds_ = nullptr;
  panel_type* strip_panels_ = nullptr;
  bool* settled_ = nullptr;  // of a strip's first row: its stages are part of shift_ by now
  T *queries_ = nullptr, *panel_ = nullptr, *bias_ = nullptr;
  T *max_ = nullptr, *lse_ = nullptr, *shift_ = nullptr, *sum_ = nullptr, *out_ = nullptr;
  T* share_ = nullptr;  // where stages act after softmax
  struct {
    T* data = nullptr;  // [panels, the last one first][heads][rows][ld], from the first column that
                        // a strip sees on
    index panels = 0, head_stride = 0, ld = 0;
    T* now = nullptr;    // where the panel at hand is or will be; null: nowhere
    bool ready = false;  // it is there
  } kept_;
};

}  // namespace heed::inline HEED_ABI::kernel
