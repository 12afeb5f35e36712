// The reverse sweep of one row block, panels oldest to newest: see reverse.hpp for what happens in
// which order, and what stages offer.
#pragma once

#include "heed/kernel/reverse_softmax.hpp"
#include "heed/kernel/reverse_unit.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class List, class Source, class Gradient>
class reverse_block : row_block<T, Arch, List, Source> {
  using base = row_block<T, Arch, List, Source>;
  using unit_type = reverse_unit<T, Arch, List, Source, Gradient>;
  using panel_type = panel<T, Arch>;
  using logits_rows = typename base::logits_rows;
  using probs_rows = typename base::probs_rows;
  using source_rows = typename base::source_rows;
  using gradient_rows = typename Gradient::rows_type;
  static constexpr index W = base::W;
  static constexpr T infinity = base::infinity;

  // What is known of a stage's forward call on the strip at hand.
  struct call_record {
    panel_type at;
    T* kept = nullptr;  // hook::keeps_input, keeps_output
    T* cut = nullptr;   // what it was given before -inf became 0; used where `has_cut`
    bool called = false, has_cut = false;
  };
  template <class Rows>
  using records = std::array<call_record, std::tuple_size_v<Rows>>;
  // The panel of a strip of rows, before the logits stages and behind the last stage.
  struct strip_record {
    panel_type scores, final;
  };
  // Everything that a sweep moves.
  struct moving {
    source_rows source;
    logits_rows logits;
    probs_rows probs;
    gradient_rows gradient;

    moving(const reverse_block& b, const rows_context<T, Arch>& c)
        : source(b.u_.source.rows(c, b.queries_)),
          logits(rows_for(b.list().logits, b.u_.plans.logits, c)),
          probs(rows_for(b.list().probs, b.u_.plans.probs, c)),
          gradient(b.unit_.source.rows(source, c, b.queries_, b.dqueries_)) {}
    moving(const moving&) = delete;
    moving& operator=(const moving&) = delete;
  };

 public:
  reverse_block(const unit_type& u, index head, index heads, index begin, index end,
                workspace& scratch)
      : base(u.forward, head, heads, begin, end, scratch), unit_(u) {
    take_memory();
    load_gradients();
  }

  void run() {
    if (base::range_count_ > 0) sweep();
    add_denominators();
  }

 private:
  const List& list() const noexcept { return base::u_.list; }
  index D() const noexcept { return base::u_.plans.context.problem.D; }
  index own_begin() const noexcept { return base::first_row(0); }
  index height() const noexcept { return base::whole_ ? base::count_ : base::u_.sizes.strip; }

  void take_memory() {
    constexpr index page = 4096 / static_cast<index>(sizeof(T));
    stride_ =
        base::heads_ == 1 ? base::count_ * base::ld_ : round_up(base::count_ * base::ld_, page) + W;
    weights_ = take_panel();
    gradient_ = take_panel();
    if (list().after_softmax) soft_ = take_panel();
    take_records(list().logits, logits_calls_);
    take_records(list().probs, probs_calls_);
    strips_ = base::scratch_.template take<strip_record>((base::count_ + height() - 1) / height());
    const index ldo = base::ldo_, ldq = round_up(D(), W);
    dout_ = {base::scratch_.template take<T>(base::heads_ * base::count_ * ldo), base::count_ * ldo,
             ldo};
    dqueries_ = {base::scratch_.template take<T>(base::heads_ * base::count_ * ldq),
                 base::count_ * ldq, ldq};
    delta_ = base::scratch_.template take<T>(base::heads_ * base::count_);
    dlse_ = base::scratch_.template take<T>(base::heads_ * base::count_);
  }
  T* take_panel() { return base::scratch_.template take<T>(base::heads_ * stride_ + W); }
  template <class Stages, class Records>
  void take_records(const Stages& stages, Records& calls) {
    for_each_pair(stages, calls, [&](const auto& stage, call_record& call) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      if constexpr (has_hook<Stage>(hook::keeps_input) || has_hook<Stage>(hook::keeps_output)) {
        call.kept = take_panel();
      }
      if (geometry_of(stage).reads == geometry::invisible::zero) call.cut = take_panel();
    });
  }

  // dO of the block's own rows behind the softmax and its probs stages, delta as far as it is known
  // before the sweep, and the log-sum-exps.
  void load_gradients() {
    const bool with_output = any_active(list().output);
    for (index g = 0; g < base::heads_; ++g) {
      for (index r = 0; r < base::count_; ++r) {
        const index at = g * base::count_ + r, row = base::seq().first_query + base::row_ + r;
        base::lse_[at] = unit_.lse(base::seq().batch, row, base::head_ + g);
        delta_[at] = dlse_[at] = 0;
        T* line = dout_.row(g, r);
        for (index d = 0; d < dout_.row_stride; ++d) line[d] = T(0);
        if (r < own_begin()) continue;
        load_row(unit_.dout, row, g, line);
        const T* out = base::out_ + at * base::ldo_;
        if (with_output) {
          through_output(g, r, line);
        } else if (!list().after_softmax) {
          load_row(unit_.out, row, g, base::out_ + at * base::ldo_);
        }
        double sum = 0;
        for (index d = 0; d < base::Dv() && !list().after_softmax; ++d) {
          sum += static_cast<double>(out[d]) * static_cast<double>(line[d]);
        }
        if (unit_.dlse.data() != nullptr) {
          dlse_[at] = unit_.dlse(base::seq().batch, row, base::head_ + g);
          sum -= static_cast<double>(dlse_[at]);
        }
        delta_[at] = static_cast<T>(sum);
      }
    }
  }
  void load_row(const tensor_view<const T, 4>& from, index row, index g, T* to) const {
    if (base::Dv() == 0) return;
    const T* line = from.pointer(base::seq().batch, row, base::head_ + g, index{0});
    for (index d = 0; d < base::Dv(); ++d) to[d] = line[d * from.stride(3)];
  }
  // The gradient of a row of the output becomes that of what the first output stage was given, as
  // the forward sweep has saved it.
  void through_output(index g, index r, T* gradient) {
    const workspace::scope taken(base::scratch_);
    constexpr std::size_t stages = std::tuple_size_v<typename List::output_type>;
    const index at = g * base::count_ + r, ldo = base::ldo_;
    T* lines = base::scratch_.template take<T>(static_cast<index>(stages + 1) * ldo);
    T* given = base::out_ + at * ldo;
    const T* kept = base::u_.saved.row(base::seq().batch, base::seq().first_query + base::row_ + r,
                                       base::head_ + g);
    for (index d = 0; d < base::Dv(); ++d) given[d] = kept[d];
    const T* before = given;
    std::size_t n = 0;
    for_each_pair(list().output, base::u_.plans.output, [&](const auto& stage, const auto& plan) {
      T* line = lines + static_cast<index>(n++) * ldo;
      for (index d = 0; d < ldo; ++d) line[d] = before[d];
      before = lines + static_cast<index>(n) * ldo;
      T* next = lines + static_cast<index>(n) * ldo;
      for (index d = 0; d < ldo; ++d) next[d] = line[d];
      if (is_active(stage)) plan.output(base::head_ + g, base::row_ + r, next, base::scratch_);
    });
    for_each_reversed(list().output, [&](const auto& stage, auto number) {
      constexpr std::size_t I = decltype(number)::value;
      if (!is_active(stage)) return;
      std::get<I>(base::u_.plans.output)
          .output_grad(base::head_ + g, base::row_ + r, lines + static_cast<index>(I) * ldo,
                       gradient, std::get<I>(unit_.sums.output), base::scratch_);
    });
  }

  void sweep() {
    base::load_queries();
    strange_block_ = !all_finite();
    const rows_context<T, Arch> context{base::u_.plans.context.problem,
                                        base::seq(),
                                        base::u_.plans.context.inputs,
                                        base::head_,
                                        base::heads_,
                                        base::row_,
                                        base::count_,
                                        base::ranges_[0].end,
                                        base::u_.sizes.panel,
                                        base::scratch_};
    moving m(*this, context);
    base::merged_ = base::merges(m.logits);
    base::keep_row_bias(m.logits);
    for (index n = 0; n < base::heads_ * base::count_; ++n) base::lse_[n] -= base::shift_[n];
    panels_ = base::list_panels(m.source);
    if (base::u_.saved.panels != nullptr) panels_ = panels_.first(swept_by_forward());
    whole_rows_ = panels_.size() == 1 && !any_lists(list().logits, hook::denominator);
    for (index n = 0; n < base::heads_ * base::count_ * dqueries_.row_stride; ++n)
      dqueries_.data[n] = T(0);
    keep_carries(m);
    if (list().after_softmax && unit_.logits_wanted) reverse(m, context, true);
    reverse(m, context, false);
    for (index n = 0; n < base::heads_ * base::count_; ++n) base::lse_[n] += base::shift_[n];
  }
  std::size_t swept_by_forward() const noexcept {
    const index row = base::seq().first_query + base::row_ + own_begin();
    return static_cast<std::size_t>(
        base::u_.saved.panels[base::u_.saved.at(base::seq().batch, row, base::head_)]);
  }
  bool all_finite() const noexcept {
    T sum = 0;
    for (index n = 0; n < base::heads_ * base::count_ * D(); ++n) sum += base::queries_[n] * 0;
    for (index n = 0; n < base::heads_ * base::count_ * dout_.row_stride; ++n)
      sum += dout_.data[n] * 0;
    for (index n = 0; n < base::heads_ * base::count_; ++n)
      sum += base::lse_[n] == -infinity ? T(0) : base::lse_[n] * 0;
    return sum == 0;
  }

  // Calls visit(pointer, count) for every carry of every stage.
  static auto all_carries(const List& list, moving& m) {
    return [&](auto&& visit) {
      const auto each = [&](const auto& stage, auto& rows) {
        if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::carries)) {
          if (is_active(stage)) rows.carries(visit);
        }
      };
      for_each_pair(list.logits, m.logits, each);
      for_each_pair(list.probs, m.probs, each);
    };
  }
  // Goes through the panels in the forward direction and keeps the carries of each. No logits are
  // computed unless a stage's carry depends on them.
  void keep_carries(moving& m) {
    m.gradient.keep(panels_);
    const bool any =
        any_lists(list().logits, hook::carries) || any_lists(list().probs, hook::carries);
    if (!any) return;
    const auto count = static_cast<index>(panels_.size());
    const bool in_probs = any_lists(list().probs, hook::forward_carries);
    const bool in_logits =
        in_probs || (!base::merged_ && any_lists(list().logits, hook::forward_carries));
    carries_.take(all_carries(list(), m), count, base::scratch_);
    index edge = panels_[0].end;
    for (index n = 0; n < count; ++n) {
      const key_range p = panels_[static_cast<std::size_t>(n)];
      if (p.end < edge) base::advance(m.source, m.logits, m.probs, p.end, edge);
      carries_.save(all_carries(list(), m), n);
      if (in_logits && !skipped(p)) {
        base::enter(m.source, m.logits, m.probs, p.begin, p.end);
        for (index a = 0; a < base::count_; a += height()) forward_strip(m, p, a, in_probs);
      }
      base::advance(m.source, m.logits, m.probs, p.begin, p.end);
      edge = p.begin;
    }
    any_carries_ = true;
  }
  bool skipped(const key_range& p) const noexcept {
    return base::u_.visible.has_view() && !base::looks_aside() &&
           base::nothing_shown(p.begin, p.end);
  }

  // All panels, oldest to newest. Measuring: only to find delta.
  void reverse(moving& m, const rows_context<T, Arch>& context, bool measuring) {
    const workspace::scope taken(base::scratch_);
    m.gradient.restart(measuring);
    begin_backward(m, context, measuring);
    for (auto n = static_cast<index>(panels_.size()); n-- > 0;) {
      const key_range p = panels_[static_cast<std::size_t>(n)];
      if (any_carries_) carries_.restore(all_carries(list(), m), n);
      m.gradient.recall(static_cast<std::size_t>(n));
      if (!skipped(p)) reverse_panel_at(m, p, measuring);
      retreat(m, p.begin, p.end, measuring);
      const index next = n > 0 ? panels_[static_cast<std::size_t>(n - 1)].begin : p.end;
      if (next > p.end) retreat(m, p.end, next, measuring);
    }
    if (!measuring) end_backward(m);
  }
  void begin_backward(moving& m, const rows_context<T, Arch>& context, bool measuring) {
    const head_rows<T> values = measuring ? head_rows<T>{} : unit_.dvalues;
    const reverse_context<T, Arch> reverse{
        context, values, base::u_.head / base::u_.plans.context.problem.group(), base::scratch_};
    const auto begin = [&](const auto& stages, auto& rows, auto& sums) {
      for_each_reversed(stages, [&](const auto& stage, auto number) {
        constexpr std::size_t I = decltype(number)::value;
        using Stage = std::remove_cvref_t<decltype(stage)>;
        if constexpr (has_hook<Stage>(hook::begin_backward)) {
          if (!is_active(stage)) return;
          std::remove_cvref_t<decltype(std::get<I>(sums))> nothing{};
          std::get<I>(rows).begin_backward(reverse, measuring ? nothing : std::get<I>(sums));
        }
      });
    };
    begin(list().logits, m.logits, unit_.sums.logits);
    begin(list().probs, m.probs, unit_.sums.probs);
  }
  void retreat(moving& m, index begin, index end, bool measuring) {
    if (const key_range k = base::clip(begin, end); k.begin < k.end && !measuring) {
      m.gradient.retreat(k.begin, k.end);
    }
    index ahead = 0;
    const auto move = [&](const auto& stage, auto& rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if (!is_active(stage)) return;
      if constexpr (has_hook<Stage>(hook::retreat)) rows.retreat(begin + ahead, end + ahead);
      ahead += geometry_of(stage).older_cols;
    };
    for_each_pair(list().logits, m.logits, move);
    for_each_pair(list().probs, m.probs, move);
  }
  void end_backward(moving& m) {
    m.gradient.finish(strange_block_);
    finish_queries();
    const auto end = [&](const auto& stage, auto& rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if constexpr (has_hook<Stage>(hook::end_backward)) {
        if (is_active(stage)) rows.end_backward(dqueries_);
      }
    };
    for_each_pair(list().logits, m.logits, end);
    for_each_pair(list().probs, m.probs, end);
    store_queries();
  }

  void reverse_panel_at(moving& m, const key_range& keys, bool measuring) {
    base::enter(m.source, m.logits, m.probs, keys.begin, keys.end);
    const bool careful = strange_block_ || strange(keys);
    index n = 0;
    for (index a = 0; a < base::count_; a += height(), ++n) {
      forward_strip(m, keys, a, true);
      strips_[n] = {scores_at_, final_at_};
      backward_strip(m, keys, a, careful, measuring);
    }
    if (measuring) return;
    if (unit_.dvalues.data != nullptr) {
      over_columns(n, &strip_record::final, weights_,
                   [&](const panel_type& p, index g) { values_grad(p, g, careful); });
    }
    if (unit_.logits_wanted) {
      over_columns(n, &strip_record::scores, gradient_,
                   [&](const panel_type& p, index g) { m.gradient.keys_grad(p, g, careful); });
    }
  }
  bool strange(const key_range& keys) const noexcept {
    const key_range k = base::clip(keys.begin, keys.end + base::lag());
    for (index n = k.begin / unit_type::strange_keys; n * unit_type::strange_keys < k.end; ++n) {
      if (unit_.strange[n]) return true;
    }
    return false;
  }
  // dV += P^T dO
  void values_grad(const panel_type& p, index g, bool careful) const {
    const index kv = kv_of(g);
    add_product_transposed<Arch>(careful, p.line(g, p.begin) + p.first, p.row_stride,
                                 dout_.row(g, p.begin), dout_.row_stride,
                                 unit_.dvalues.row(kv, p.key(p.first)), unit_.dvalues.row_stride,
                                 p.last - p.first, base::Dv(), p.end - p.begin);
  }
  index kv_of(index g) const noexcept {
    const index group = base::u_.plans.context.problem.group();
    return (base::head_ + g) / group - base::u_.head / group;
  }

  // f(panel, g) for runs of columns that the same rows see, all rows at once.
  template <class F>
  void over_columns(index strips, panel_type strip_record::*which, T* data, const F& f) {
    constexpr index step = 4 * rows_per_tile;
    index lo = PTRDIFF_MAX, hi = 0;
    for (index n = 0; n < strips; ++n) {
      const panel_type& p = strips_[n].*which;
      if (p.begin >= p.end || p.first >= p.last) continue;
      lo = (std::min)(lo, p.first);
      hi = (std::max)(hi, p.last);
    }
    const auto rows_that_see = [&](index from, index to) {
      key_range rows{base::count_, 0};
      for (index n = 0; n < strips; ++n) {
        const panel_type& p = strips_[n].*which;
        if (p.begin >= p.end || p.first >= to || p.last <= from) continue;
        rows = {(std::min)(rows.begin, p.begin), (std::max)(rows.end, p.end)};
      }
      return rows;
    };
    for (index c = lo; c < hi;) {
      index to = (std::min)(hi, c + step);
      const key_range rows = rows_that_see(c, to);
      while (to < hi) {
        const key_range more = rows_that_see(to, (std::min)(hi, to + step));
        if (more.begin != rows.begin || more.end != rows.end) break;
        to = (std::min)(hi, to + step);
      }
      if (rows.begin < rows.end) {
        panel_type p = strips_[0].*which;
        p.data = data;
        p.origin = 0;
        p.begin = rows.begin;
        p.end = rows.end;
        p.first = c;
        p.last = to;
        for (index g = 0; g < base::heads_; ++g) f(p, g);
      }
      c = to;
    }
  }

  panel_type strip_panel(T* data, const key_range& keys, index a) const noexcept {
    panel_type p;
    p.data = data + a * base::ld_;
    p.head_stride = stride_;
    p.row_stride = base::ld_;
    p.origin = p.begin = a;
    p.end = (std::min)(base::count_, a + height());
    p.head = base::head_;
    p.heads = base::heads_;
    p.row = base::row_;
    p.column = keys.begin;
    p.visible = &base::u_.visible;
    p.bounds = base::bounds_;
    return p;
  }
  // Logits, and with to_the_end the probabilities as they meet the values. Rows [a, a + height).
  // Where nothing acts after softmax, these are left as logits: backward_strip takes them from
  // there.
  void forward_strip(moving& m, const key_range& keys, index a, bool to_the_end) {
    const index columns = keys.end - keys.begin;
    panel_type p = strip_panel(weights_, keys, a);
    base::trim(p, columns);
    scores_at_ = p;
    if (p.first < p.last) {
      for (index g = 0; g < base::heads_; ++g) {
        m.source.scores(p, g, base::merged_ ? base::bias_ + g * base::ld_ + p.first : nullptr);
      }
    }
    forward_stages(list().logits, m.logits, logits_calls_, p, columns,
                   list().probs_reach.rows_above, base::merged_);
    if (!to_the_end) return;
    p.begin = (std::max)(a, (std::min)(p.end, base::probs_begin()));
    base::trim(p, columns);
    if (p.begin >= p.end) p.last = p.first;
    p.hide(-infinity);
    soft_at_ = final_at_ = p;
    if (!list().after_softmax) return;
    each_head(p, [&](index g, T* line, index rows, index cols) {
      probabilities_strip<Arch>(line, base::ld_, rows, cols,
                                base::lse_ + g * base::count_ + p.begin);
    });
    clean(p, weights_, a, columns);
    copy_strip(weights_, soft_, a);
    forward_stages(list().probs, m.probs, probs_calls_, p, columns, 0, false);
    p.begin = (std::max)(a, (std::min)(p.end, own_begin()));
    base::trim(p, columns);
    if (p.begin >= p.end) p.last = p.first;
    final_at_ = p;
    clean(p, weights_, a, columns);
  }
  // f(g, line, rows, columns) for a part of a panel.
  template <class F>
  void each_head(const panel_type& p, const F& f) const {
    if (p.first >= p.last || p.begin >= p.end) return;
    for (index g = 0; g < base::heads_; ++g) {
      f(g, p.line(g, p.begin) + p.first, p.end - p.begin, p.last - p.first);
    }
  }
  // A buffer laid out like p becomes 0 in all that p does not hold and in what is invisible.
  void clean(const panel_type& p, T* buffer, index a, index columns) const noexcept {
    T* data = buffer + a * base::ld_;
    p.hide(data, T(0));
    for (index g = 0; g < base::heads_; ++g) {
      for (index r = p.origin; r < p.end; ++r) {
        T* line = data + g * stride_ + (r - p.origin) * base::ld_;
        const index first = r < p.begin ? columns : p.first;
        if (first > 0) fill_columns<Arch>(line, 0, first, T(0));
        if (r >= p.begin && p.last < columns) fill_columns<Arch>(line, p.last, columns, T(0));
      }
    }
  }
  void copy_strip(const T* from, T* to, index a) const noexcept {
    const index end = (std::min)(base::count_, a + height());
    for (index g = 0; g < base::heads_; ++g) {
      const index begin = g * stride_ + a * base::ld_;
      std::memcpy(to + begin, from + begin,
                  static_cast<std::size_t>((end - a) * base::ld_) * sizeof(T));
    }
  }

  // As the forward sweep's run_stages, and notes what the way back needs.
  template <class Stages, class Rows, class Records>
  void forward_stages(const Stages& stages, Rows& rows, Records& calls, panel_type& p,
                      index columns, index later, bool merged) {
    index above = reach_of(stages).rows_above;
    const index a = p.origin;
    for_each_numbered(stages, [&](const auto& stage, auto number) {
      constexpr std::size_t I = decltype(number)::value;
      using Stage = std::remove_cvref_t<decltype(stage)>;
      call_record& call = calls[I];
      call.called = call.has_cut = false;
      if constexpr (has_hook<Stage>(hook::forward)) {
        if (!is_active(stage)) return;
        const geometry reads = geometry_of(stage);
        base::trim(p, columns);
        if (reads.older_cols + reads.newer_cols > 0) base::widen(p, columns);
        if (!merged) show_invisible<Stage::where>(reads, p, call, a);
        above -= reads.rows_above;
        p.begin = (std::max)(a, (std::min)(p.end, base::first_row(later + above)));
        call.at = p;
        call.called = p.begin < p.end && p.first < p.last;
        if (merged) return;
        if constexpr (has_hook<Stage>(hook::keeps_input)) copy_strip(weights_, call.kept, a);
        if (p.begin < p.end) std::get<I>(rows).forward(p);
        if constexpr (has_hook<Stage>(hook::keeps_output)) copy_strip(weights_, call.kept, a);
        p.column += reads.older_cols;
      }
    });
  }
  // Invisible entries, and visible -inf, as the stage asks for.
  template <place Where>
  void show_invisible(const geometry& reads, const panel_type& p, call_record& call, index a) {
    if (reads.reads == geometry::invisible::minus_infinity) p.hide(-infinity);
    if (reads.reads != geometry::invisible::zero) return;
    p.hide(T(0));
    if (Where != place::logits) return;
    for (index g = 0; g < base::heads_ && !call.has_cut; ++g) {
      for (index r = p.begin; r < p.end && !call.has_cut; ++r) {
        call.has_cut = base::has_infinity(p, p.line(g, r));
      }
    }
    if (!call.has_cut) return;
    copy_strip(weights_, call.cut, a);
    base::infinity_to_zero(p);
  }
  // The stages' adjoints, last stage first.
  template <class Stages, class Rows, class Records>
  void backward_stages(const Stages& stages, Rows& rows, const Records& calls, index a) {
    for_each_reversed(stages, [&](const auto& stage, auto number) {
      constexpr std::size_t I = decltype(number)::value;
      using Stage = std::remove_cvref_t<decltype(stage)>;
      const call_record& call = calls[I];
      if (!call.called) return;
      if constexpr (has_hook<Stage>(hook::backward)) {
        reverse_panel<T, Arch> p{call.at,
                                 call.kept == nullptr ? nullptr : call.kept + a * base::ld_};
        p.data = gradient_ + a * base::ld_;
        std::get<I>(rows).backward(p);
        p.begin = (std::max)(a, p.begin - geometry_of(stage).rows_above);
        p.hide(T(0));
        if (call.has_cut) cut_off(p, call.cut + a * base::ld_);
      }
    });
  }
  // What read as 0 in place of -inf has no gradient.
  static void cut_off(const panel_type& p, const T* given) noexcept {
    const index distance = given - p.data;
    for (index g = 0; g < p.heads; ++g) {
      for (index r = p.begin; r < p.end; ++r) {
        T* line = p.line(g, r);
        for (index c = p.first; c < p.last; ++c) {
          if (line[c + distance] == -infinity) line[c] = T(0);
        }
      }
    }
  }

  void backward_strip(moving& m, const key_range& keys, index a, bool careful, bool measuring) {
    const index columns = keys.end - keys.begin;
    const bool fused = !list().after_softmax;
    panel_type p = final_at_;
    p.data = gradient_ + a * base::ld_;
    if (unit_.logits_wanted) times_values(p);
    if (fused) {
      each_head(soft_at_, [&](index g, T* line, index rows, index cols) {
        const index at = g * base::count_ + soft_at_.begin;
        if (unit_.logits_wanted && whole_rows_) {
          softmax_whole_strip<Arch>(line, p.line(g, p.begin) + p.first, base::ld_, rows, cols,
                                    base::lse_ + at, dlse_ + at);
        } else if (unit_.logits_wanted) {
          softmax_both_strip<Arch>(line, p.line(g, p.begin) + p.first, base::ld_, rows, cols,
                                   base::lse_ + at, delta_ + at);
        } else {
          probabilities_strip<Arch>(line, base::ld_, rows, cols, base::lse_ + at);
        }
      });
      clean(soft_at_, weights_, a, columns);
    }
    if (!unit_.logits_wanted) return;
    clean(p, gradient_, a, columns);
    if (!fused) {
      backward_stages(list().probs, m.probs, probs_calls_, a);
      through_softmax(a, measuring);
      if (measuring) return;
    }
    backward_stages(list().logits, m.logits, logits_calls_, a);
    panel_type s = scores_at_;
    s.data = gradient_ + a * base::ld_;
    if (s.first >= s.last) return;
    for (index g = 0; g < base::heads_; ++g) m.gradient.queries_grad(s, g, careful);
  }
  // dP = dO V^T
  void times_values(const panel_type& p) const {
    constexpr index strip = strip_width<T, Arch>;
    const index Dv = base::Dv();
    each_head(p, [&](index g, T* line, index rows, index) {
      const T* packed = unit_.values.row(kv_of(g), 0);
      for (index c = p.first; c < p.last;) {
        const index key = p.key(c), within = key % strip;
        const index n = (std::min)(strip - within, p.last - c);
        product<Arch>(dout_.row(g, p.begin), dout_.row_stride,
                      packed + (key - within) * Dv + within, strip, line + (c - p.first), base::ld_,
                      rows, n, Dv, start::zero);
        c += n;
      }
    });
  }
  // dL = P (dP - delta), or only what delta is made of.
  void through_softmax(index a, bool measuring) {
    panel_type s = soft_at_;
    s.data = gradient_ + a * base::ld_;
    const index distance = soft_ - gradient_;
    each_head(s, [&](index g, T* line, index rows, index cols) {
      T* delta = delta_ + g * base::count_ + s.begin;
      if (measuring) {
        add_row_products<Arch>(line + distance, line, base::ld_, rows, cols, delta);
      } else {
        softmax_backward_strip<Arch>(line + distance, line, base::ld_, rows, cols, delta);
      }
    });
  }

  // From the queries that met the keys to those of the caller.
  void finish_queries() {
    const T scale = static_cast<T>(base::u_.plans.context.problem.scale);
    const index ld = dqueries_.row_stride;
    for (index n = 0; n < base::heads_ * base::count_ * ld; ++n) dqueries_.data[n] *= scale;
    for (index g = 0; g < base::heads_; ++g) {
      for_each_reversed(list().inputs, [&](const auto& stage, auto number) {
        if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::queries_grad)) {
          if (!is_active(stage)) return;
          std::get<decltype(number)::value>(base::u_.plans.inputs)
              .queries_grad(base::head_ + g, base::row_, base::row_ + base::count_,
                            dqueries_.row(g, 0), ld);
        }
      });
    }
  }
  void store_queries() {
    if (unit_.dq.data() == nullptr) return;
    const tensor_view<T, 4>& to = unit_.dq;
    for (index g = 0; g < base::heads_; ++g) {
      for (index r = 0; r < base::count_; ++r) {
        T* out = to.pointer(base::seq().batch, base::seq().first_query + base::row_ + r,
                            base::head_ + g, index{0});
        const T* line = dqueries_.row(g, r);
        for (index d = 0; d < D(); ++d) out[d * to.stride(3)] += line[d];
      }
    }
  }

  // A logit in the denominator only: P (0 - delta).
  void add_denominators() {
    for (index g = 0; g < base::heads_; ++g) {
      for_each_reversed(list().logits, [&](const auto& stage, auto number) {
        constexpr std::size_t I = decltype(number)::value;
        using Stage = std::remove_cvref_t<decltype(stage)>;
        if constexpr (has_hook<Stage>(hook::denominator)) {
          if (!is_active(stage)) return;
          const auto& plan = std::get<I>(base::u_.plans.logits);
          const auto logit = static_cast<double>(plan.denominator(base::head_ + g));
          if (logit == -std::numeric_limits<double>::infinity()) return;
          double sum = 0;
          for (index r = base::probs_begin(); r < base::count_; ++r) {
            const index at = g * base::count_ + r;
            sum -= std::exp(logit - static_cast<double>(base::lse_[at])) *
                   static_cast<double>(delta_[at]);
          }
          plan.denominator_grad(base::head_ + g, sum, std::get<I>(unit_.sums.logits));
        }
      });
    }
  }

  const unit_type& unit_;
  index stride_ = 0;       // from head to head in the buffers below
  T* weights_ = nullptr;   // logits, then probabilities as they meet the values
  T* gradient_ = nullptr;  // of what is at hand
  T* soft_ = nullptr;      // probabilities as the softmax put them out
  records<logits_rows> logits_calls_{};
  records<probs_rows> probs_calls_{};
  strip_record* strips_ = nullptr;
  panel_type scores_at_, soft_at_, final_at_;  // of the strip at hand
  head_rows<T> dout_, dqueries_;
  T *delta_ = nullptr, *dlse_ = nullptr;
  std::span<const key_range> panels_;
  carry_store carries_;
  bool any_carries_ = false;
  bool whole_rows_ = false;     // one panel holds all that a row sees
  bool strange_block_ = false;  // a query, dO or log-sum-exp is not finite
};

}  // namespace heed::inline HEED_ABI::kernel
