// Where the rows of a reverse sweep begin and end: gradients of the output become those of what
// meets the values, and gradients of the queries that met the keys those of the caller's.
#pragma once

#include "heed/kernel/reverse_unit.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch, class List, class Source, class Gradient>
class reverse_ends : protected row_block<T, Arch, List, Source> {
 protected:
  using base = row_block<T, Arch, List, Source>;
  using unit_type = reverse_unit<T, Arch, List, Source, Gradient>;

  reverse_ends(const unit_type& u, index head, index heads, index begin, index end,
               workspace& scratch)
      : base(u.forward, head, heads, begin, end, scratch), unit_(u) {
    const index ldo = base::ldo_, ldq = round_up(D(), base::W);
    dout_ = {base::scratch_.template take<T>(base::heads_ * base::count_ * ldo), base::count_ * ldo,
             ldo};
    dqueries_ = {base::scratch_.template take<T>(base::heads_ * base::count_ * ldq),
                 base::count_ * ldq, ldq};
    delta_ = base::scratch_.template take<T>(base::heads_ * base::count_);
    lse_ = base::scratch_.template take<T>(base::heads_ * base::count_);
    dlse_ = base::scratch_.template take<T>(base::heads_ * base::count_);
    load_gradients();
  }

  const List& list() const noexcept { return base::u_.list; }
  index D() const noexcept { return base::u_.plans.context.problem.D; }
  index own_begin() const noexcept { return base::first_row(0); }
  index kv_of(index g) const noexcept {
    const index group = base::u_.plans.context.problem.group();
    return (base::head_ + g) / group - base::u_.head / group;
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
            sum -=
                std::exp(logit - static_cast<double>(lse_[at])) * static_cast<double>(delta_[at]);
          }
          plan.denominator_grad(base::head_ + g, sum, std::get<I>(unit_.sums.logits));
        }
      });
    }
  }

  const unit_type& unit_;
  head_rows<T> dout_, dqueries_;
  T *lse_ = nullptr, *dlse_ = nullptr, *delta_ = nullptr;

 private:
  // dO of the block's own rows behind the softmax and its probs stages, delta as far as it is known
  // before the sweep, and the log-sum-exps.
  void load_gradients() {
    const bool with_output = any_active(list().output);
    for (index g = 0; g < base::heads_; ++g) {
      for (index r = 0; r < base::count_; ++r) {
        const index at = g * base::count_ + r, row = base::seq().first_query + base::row_ + r;
        lse_[at] = unit_.lse(base::seq().batch, row, base::head_ + g);
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
};

}  // namespace heed::inline HEED_ABI::kernel
