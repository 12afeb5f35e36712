// One strip of rows and one panel of keys, through the stages and back: see reverse.hpp for what
// happens in which order.
#pragma once

#include "heed/kernel/reverse_ends.hpp"
#include "heed/kernel/reverse_softmax.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class List, class Source, class Gradient>
class reverse_strips : protected reverse_ends<T, Arch, List, Source, Gradient> {
 protected:
  using ends = reverse_ends<T, Arch, List, Source, Gradient>;
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

    moving(const reverse_strips& b, const rows_context<T, Arch>& c)
        : source(b.u_.source.rows(c, b.queries_)),
          logits(rows_for(b.list().logits, b.u_.plans.logits, c)),
          probs(rows_for(b.list().probs, b.u_.plans.probs, c)),
          gradient(b.unit_.source.rows(source, c, b.queries_, b.dqueries_)) {}
    moving(const moving&) = delete;
    moving& operator=(const moving&) = delete;
  };

  reverse_strips(const unit_type& u, index head, index heads, index begin, index end,
                 workspace& scratch)
      : ends(u, head, heads, begin, end, scratch) {
    take_memory();
  }

  index height() const noexcept { return base::whole_ ? base::count_ : base::u_.sizes.strip; }

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
    forward_stages(this->list().logits, m.logits, logits_calls_, p, columns,
                   this->list().probs_reach.rows_above, base::merged_);
    if (!to_the_end) return;
    p.begin = (std::max)(a, (std::min)(p.end, base::probs_begin()));
    base::trim(p, columns);
    if (p.begin >= p.end) p.last = p.first;
    p.hide(-infinity);
    soft_at_ = final_at_ = p;
    if (!this->list().after_softmax) return;
    each_head(p, [&](index g, T* line, index rows, index cols) {
      probabilities_strip<Arch>(line, base::ld_, rows, cols,
                                ends::lse_ + g * base::count_ + p.begin);
    });
    clean(p, weights_, a, columns);
    copy_strip(weights_, soft_, a);
    forward_stages(this->list().probs, m.probs, probs_calls_, p, columns, 0, false);
    p.begin = (std::max)(a, (std::min)(p.end, this->own_begin()));
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
    const bool fused = !this->list().after_softmax;
    panel_type p = final_at_;
    p.data = gradient_ + a * base::ld_;
    if (this->unit_.logits_wanted) times_values(p);
    if (fused) {
      each_head(soft_at_, [&](index g, T* line, index rows, index cols) {
        const index at = g * base::count_ + soft_at_.begin;
        if (this->unit_.logits_wanted && whole_rows_) {
          softmax_whole_strip<Arch>(line, p.line(g, p.begin) + p.first, base::ld_, rows, cols,
                                    ends::lse_ + at, this->dlse_ + at);
        } else if (this->unit_.logits_wanted) {
          softmax_both_strip<Arch>(line, p.line(g, p.begin) + p.first, base::ld_, rows, cols,
                                   ends::lse_ + at, this->delta_ + at);
        } else {
          probabilities_strip<Arch>(line, base::ld_, rows, cols, ends::lse_ + at);
        }
      });
      clean(soft_at_, weights_, a, columns);
    }
    if (!this->unit_.logits_wanted) return;
    clean(p, gradient_, a, columns);
    if (!fused) {
      backward_stages(this->list().probs, m.probs, probs_calls_, a);
      through_softmax(a, measuring);
      if (measuring) return;
    }
    backward_stages(this->list().logits, m.logits, logits_calls_, a);
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
      const T* packed = this->unit_.values.row(this->kv_of(g), 0);
      for (index c = p.first; c < p.last;) {
        const index key = p.key(c), within = key % strip;
        const index n = (std::min)(strip - within, p.last - c);
        product<Arch>(this->dout_.row(g, p.begin), this->dout_.row_stride,
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
      T* delta = this->delta_ + g * base::count_ + s.begin;
      if (measuring) {
        add_row_products<Arch>(line + distance, line, base::ld_, rows, cols, delta);
      } else {
        softmax_backward_strip<Arch>(line + distance, line, base::ld_, rows, cols, delta);
      }
    });
  }

 private:
  void take_memory() {
    constexpr index page = 4096 / static_cast<index>(sizeof(T));
    stride_ =
        base::heads_ == 1 ? base::count_ * base::ld_ : round_up(base::count_ * base::ld_, page) + W;
    weights_ = take_panel();
    gradient_ = take_panel();
    if (this->list().after_softmax) soft_ = take_panel();
    take_records(this->list().logits, logits_calls_);
    take_records(this->list().probs, probs_calls_);
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

 protected:
  index stride_ = 0;       // from head to head in the buffers below
  T* weights_ = nullptr;   // logits, then probabilities as they meet the values
  T* gradient_ = nullptr;  // of what is at hand
  T* soft_ = nullptr;      // probabilities as the softmax put them out
  records<logits_rows> logits_calls_{};
  records<probs_rows> probs_calls_{};
  panel_type scores_at_, soft_at_, final_at_;  // of the strip at hand
  bool whole_rows_ = false;                    // one panel holds all that a row sees
};

}  // namespace heed::inline HEED_ABI::kernel
