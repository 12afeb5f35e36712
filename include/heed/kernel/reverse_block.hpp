// The reverse sweep of one row block, panels oldest to newest: see reverse.hpp for what happens in
// which order, and what stages offer.
#pragma once

#include "heed/kernel/reverse_strips.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class List, class Source, class Gradient>
class reverse_block : reverse_strips<T, Arch, List, Source, Gradient> {
  using strips = reverse_strips<T, Arch, List, Source, Gradient>;
  using ends = reverse_ends<T, Arch, List, Source, Gradient>;
  using base = row_block<T, Arch, List, Source>;
  using unit_type = reverse_unit<T, Arch, List, Source, Gradient>;
  using panel_type = panel<T, Arch>;
  using moving = typename strips::moving;
  using strip_record = typename strips::strip_record;

 public:
  reverse_block(const unit_type& u, index head, index heads, index begin, index end,
                workspace& scratch)
      : strips(u, head, heads, begin, end, scratch) {
    const index height = this->height();
    strips_ = base::scratch_.template take<strip_record>((base::count_ + height - 1) / height);
  }

  void run() {
    if (base::range_count_ > 0) sweep();
    this->add_denominators();
  }

 private:
  void sweep() {
    base::load_queries();
    strange_block_ = !all_finite();
    const rows_context<T, Arch> context = base::rows_at_hand();
    moving m(*this, context);
    base::merged_ = base::merges(m.logits);
    base::keep_row_bias(m.logits);
    for (index n = 0; n < base::heads_ * base::count_; ++n) ends::lse_[n] -= base::shift_[n];
    panels_ = base::list_panels(m.source);
    if (base::u_.saved.panels != nullptr) panels_ = panels_.first(swept_by_forward());
    this->whole_rows_ = panels_.size() == 1 && !any_lists(this->list().logits, hook::denominator);
    for (index n = 0; n < base::heads_ * base::count_ * this->dqueries_.row_stride; ++n)
      this->dqueries_.data[n] = T(0);
    keep_carries(m);
    if (this->list().after_softmax && this->unit_.logits_wanted) reverse(m, context, true);
    reverse(m, context, false);
    for (index n = 0; n < base::heads_ * base::count_; ++n) ends::lse_[n] += base::shift_[n];
  }
  std::size_t swept_by_forward() const noexcept {
    const index row = base::seq().first_query + base::row_ + this->own_begin();
    return static_cast<std::size_t>(
        base::u_.saved.panels[base::u_.saved.at(base::seq().batch, row, base::head_)]);
  }
  bool all_finite() const noexcept {
    T sum = 0;
    for (index n = 0; n < base::heads_ * base::count_ * this->D(); ++n)
      sum += base::queries_[n] * 0;
    for (index n = 0; n < base::heads_ * base::count_ * this->dout_.row_stride; ++n)
      sum += this->dout_.data[n] * 0;
    for (index n = 0; n < base::heads_ * base::count_; ++n)
      sum += ends::lse_[n] == -base::infinity ? T(0) : ends::lse_[n] * 0;
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
    const bool any = any_lists(this->list().logits, hook::carries) ||
                     any_lists(this->list().probs, hook::carries);
    if (!any) return;
    const auto count = static_cast<index>(panels_.size());
    const bool in_probs = any_lists(this->list().probs, hook::forward_carries);
    const bool in_logits =
        in_probs || (!base::merged_ && any_lists(this->list().logits, hook::forward_carries));
    carries_.take(all_carries(this->list(), m), count, base::scratch_);
    index edge = panels_[0].end;
    for (index n = 0; n < count; ++n) {
      const key_range p = panels_[static_cast<std::size_t>(n)];
      if (p.end < edge) base::advance(m.source, m.logits, m.probs, p.end, edge);
      carries_.save(all_carries(this->list(), m), n);
      if (in_logits && !skipped(p)) {
        base::enter(m.source, m.logits, m.probs, p.begin, p.end);
        for (index a = 0; a < base::count_; a += this->height())
          this->forward_strip(m, p, a, in_probs);
      }
      base::advance(m.source, m.logits, m.probs, p.begin, p.end);
      edge = p.begin;
    }
    any_carries_ = true;
  }
  bool skipped(const key_range& p) const noexcept {
    return base::u_.visible.has_view() && base::aside() == 0 && base::nothing_shown(p.begin, p.end);
  }

  // All panels, oldest to newest. Measuring: only to find delta.
  void reverse(moving& m, const rows_context<T, Arch>& context, bool measuring) {
    const workspace::scope taken(base::scratch_);
    m.gradient.restart(measuring);
    begin_backward(m, context, measuring);
    for (auto n = static_cast<index>(panels_.size()); n-- > 0;) {
      const key_range p = panels_[static_cast<std::size_t>(n)];
      if (any_carries_) carries_.restore(all_carries(this->list(), m), n);
      m.gradient.recall(static_cast<std::size_t>(n));
      if (!skipped(p)) reverse_panel_at(m, p, measuring);
      retreat(m, p.begin, p.end, measuring);
      const index next = n > 0 ? panels_[static_cast<std::size_t>(n - 1)].begin : p.end;
      if (next > p.end) retreat(m, p.end, next, measuring);
    }
    if (!measuring) end_backward(m);
  }
  void begin_backward(moving& m, const rows_context<T, Arch>& context, bool measuring) {
    const head_rows<T> values = measuring ? head_rows<T>{} : this->unit_.dvalues;
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
    begin(this->list().logits, m.logits, this->unit_.sums.logits);
    begin(this->list().probs, m.probs, this->unit_.sums.probs);
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
    for_each_pair(this->list().logits, m.logits, move);
    for_each_pair(this->list().probs, m.probs, move);
  }
  void end_backward(moving& m) {
    m.gradient.finish(strange_block_);
    this->finish_queries();
    const auto end = [&](const auto& stage, auto& rows) {
      using Stage = std::remove_cvref_t<decltype(stage)>;
      if constexpr (has_hook<Stage>(hook::end_backward)) {
        if (is_active(stage)) rows.end_backward(this->dqueries_);
      }
    };
    for_each_pair(this->list().logits, m.logits, end);
    for_each_pair(this->list().probs, m.probs, end);
    this->store_queries();
  }

  void reverse_panel_at(moving& m, const key_range& keys, bool measuring) {
    base::enter(m.source, m.logits, m.probs, keys.begin, keys.end);
    const bool careful = strange_block_ || strange(keys);
    index n = 0;
    for (index a = 0; a < base::count_; a += this->height(), ++n) {
      this->forward_strip(m, keys, a, true);
      strips_[n] = {this->scores_at_, this->final_at_};
      this->backward_strip(m, keys, a, careful, measuring);
    }
    if (measuring) return;
    if (this->unit_.dvalues.data != nullptr) {
      over_columns(n, &strip_record::final, this->weights_,
                   [&](const panel_type& p, index g) { values_grad(p, g, careful); });
    }
    if (this->unit_.logits_wanted) {
      over_columns(n, &strip_record::scores, this->gradient_,
                   [&](const panel_type& p, index g) { m.gradient.keys_grad(p, g, careful); });
    }
  }
  bool strange(const key_range& keys) const noexcept {
    const key_range k = base::clip(keys.begin, keys.end + base::lag());
    for (index n = k.begin / unit_type::strange_keys; n * unit_type::strange_keys < k.end; ++n) {
      if (this->unit_.strange[n]) return true;
    }
    return false;
  }
  // dV += P^T dO
  void values_grad(const panel_type& p, index g, bool careful) const {
    const index kv = this->kv_of(g);
    add_product_transposed<Arch>(
        careful, p.line(g, p.begin) + p.first, p.row_stride, this->dout_.row(g, p.begin),
        this->dout_.row_stride, this->unit_.dvalues.row(kv, p.key(p.first)),
        this->unit_.dvalues.row_stride, p.last - p.first, base::Dv(), p.end - p.begin);
  }
  // f(panel, g) for runs of columns that the same rows see, all rows at once.
  template <class F>
  void over_columns(index count, panel_type strip_record::*which, T* data, const F& f) {
    constexpr index step = 4 * rows_per_tile;
    index lo = PTRDIFF_MAX, hi = 0;
    for (index n = 0; n < count; ++n) {
      const panel_type& p = strips_[n].*which;
      if (p.begin >= p.end || p.first >= p.last) continue;
      lo = (std::min)(lo, p.first);
      hi = (std::max)(hi, p.last);
    }
    const auto rows_that_see = [&](index from, index to) {
      key_range rows{base::count_, 0};
      for (index n = 0; n < count; ++n) {
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

  strip_record* strips_ = nullptr;
  std::span<const key_range> panels_;
  carry_store carries_;
  bool any_carries_ = false;
  bool strange_block_ = false;  // a query, dO or log-sum-exp is not finite
};

}  // namespace heed::inline HEED_ABI::kernel
