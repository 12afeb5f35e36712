// Key and value shift: every token takes a part of what the token before it had.
//
//   a_t = sigmoid(W x_t)                        one number per head, W [heads, model_dim]
//   y_t = a_t r_(t-1) + (1 - a_t) r_t           per head; r before the sequence is 0
//
// Lin et al., Forgetting Transformer, arXiv 2503.02130 (the "Pro" block).
#pragma once

#include "heed/layers/projection.hpp"
#include "heed/layers/state.hpp"

namespace heed::inline HEED_ABI::layers {

template <class T>
struct token_shift {
  projection<T> part;  // [heads, model_dim], no bias
  struct tape {
    buffer<T> a, da;  // [N, heads]
  };

  token_shift() = default;
  token_shift(index model_dim, index heads) : part(model_dim, heads, false) {}
  bool exists() const noexcept { return part.exists(); }
  void each_parameter(const std::string& name, const parameter_visitor<T>& f) {
    part.each_parameter(name, f);
  }

  // x [N, model_dim] and r [N, heads D] -> y [N, heads D]. With `history`, which holds one row of
  // r for each sequence, tokens go on from there; afterwards it holds their last row.
  void forward(const tensor_view<const T, 2>& x, const buffer<T>& r, buffer<T>& y, token_rows rows,
               tape& kept, const layer_context<T>& context, history_rows<T> history) const {
    const index heads = part.out(), D = r.cols() / heads;
    kept.a.resize(rows.count(), heads);
    y.resize(rows.count(), r.cols());
    part.forward(x, kept.a.matrix(), context);
    for (index n = 0; n < kept.a.size(); ++n) kept.a.data()[n] = open(kept.a.data()[n]);
    context.for_rows(rows.count(), [&](index begin, index end) {
      for (index n = begin; n < end; ++n) {
        const T* before = n % rows.tokens > 0 ? r.row(n - 1) : history.row(n / rows.tokens, 0);
        mix(kept.a.row(n), before, r.row(n), y.row(n), heads, D);
      }
    });
    history.keep(r, rows);
  }
  // The gradient of y becomes that of r; dx += what comes through a. Sequences from their start.
  void backward(const tensor_view<const T, 2>& x, const buffer<T>& r, buffer<T>& gradient,
                token_rows rows, const tensor_view<T, 2>& dx, tape& kept,
                const layer_context<T>& context) {
    const index heads = part.out(), D = r.cols() / heads;
    kept.da.resize(rows.count(), heads);
    for (index n = 0; n < rows.count(); ++n) {
      const bool first = n % rows.tokens == 0;
      for (index h = 0; h < heads; ++h) {
        const T a = kept.a.row(n)[h];
        T* dy = gradient.row(n) + h * D;
        T* dy_before = first ? nullptr : gradient.row(n - 1) + h * D;
        const T *now = r.row(n) + h * D, *before = first ? nullptr : r.row(n - 1) + h * D;
        double da = 0;
        for (index c = 0; c < D; ++c) {
          const T old = first ? T(0) : before[c];
          da += static_cast<double>(dy[c]) * static_cast<double>(old - now[c]);
          // Row n - 1 is done with as dy, and by now holds dr but for this.
          if (!first) dy_before[c] += a * dy[c];
          dy[c] *= 1 - a;
        }
        kept.da.row(n)[h] = static_cast<T>(da * static_cast<double>(a * (1 - a)));
      }
    }
    part.backward(x, std::as_const(kept.da).matrix(), dx, context);
  }

 private:
  static T open(T z) noexcept {
    return static_cast<T>(1 / (1 + std::exp(-static_cast<double>(z))));
  }
  static void mix(const T* a, const T* before, const T* now, T* to, index heads, index D) noexcept {
    for (index h = 0; h < heads; ++h) {
      const T left = before != nullptr ? a[h] : T(0), right = 1 - a[h];
      const T* old = before != nullptr ? before : now;
      for (index c = h * D; c < (h + 1) * D; ++c) to[c] = left * old[c] + right * now[c];
    }
  }
};

}  // namespace heed::inline HEED_ABI::layers
