// Attention sinks: a learned logit per head that takes weight and has no value.
//
//   P_ij = exp(L_ij) / (exp(sink_h) + sum_j exp(L_ij))
//
// The log-sum-exp of a row includes the sink; a row that sees no key gives output 0 and log-sum-exp
// sink_h. The sink counts once, however the keys of a row are split up. Cost: nothing per score.
// Xiao et al., arXiv 2309.17453 (the observation); the learned logit is that of gpt-oss.
#pragma once

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/reverse.hpp"

namespace heed::inline HEED_ABI {

template <class T>
struct sinks_grad {
  tensor_view<T, 1> logits = {};
};

template <class T>
struct sinks {
  tensor_view<const T, 1> logits;  // [Hq], natural-log, not scaled

  static constexpr place where = place::logits;
  static constexpr hook hooks =
      hook::check | hook::denominator | hook::denominator_grad | hook::gradients | hook::sums;
  using gradient_type = sinks_grad<T>;

  // Throws shape_error unless there is one logit per query head.
  void check(const problem& p) const {
    check_extents("sinks", "logits", logits, {{{"query heads", p.Hq}}});
  }

  T denominator(index head) const noexcept { return logits(head); }
  // denominator: dsink_h += sum over rows of dL
  void denominator_grad(index head, double sum, const auto& to) const noexcept {
    if (to.sum != nullptr) to.sum[head - to.head] += sum;
  }

  template <class F>
  void gradients(const sinks_grad<T>& d, const F& f) const {
    f("sinks.logits", d.logits, logits);
  }
  template <class Arch>
  auto sums(const sinks_grad<T>& d, const owner_context<T, Arch>& c) const {
    if (d.logits.data() == nullptr) return sums_type{};
    sums_type s{d.logits, c.head, c.heads, c.memory.template take<double>(c.heads)};
    for (index h = 0; h < c.heads; ++h) s.sum[h] = 0;
    return s;
  }

 private:
  struct sums_type {
    tensor_view<T, 1> to;
    index head = 0, heads = 0;
    double* sum = nullptr;  // [heads]

    void reduce() const {
      for (index h = 0; h < heads; ++h) to(head + h) += static_cast<T>(sum[h]);
    }
  };
};
template <class T>
sinks_grad(tensor_view<T, 1>) -> sinks_grad<T>;
template <class T>
sinks(tensor_view<T, 1>) -> sinks<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
