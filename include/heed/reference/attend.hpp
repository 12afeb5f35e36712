// The reference: attention with any list of mechanisms, as plain loops over whole T x S arrays,
// written from the equations. Slow on purpose; any scalar type; no code shared with the kernels.
//
// A mechanism of your own takes part when two things can be found in its namespace:
//
//   constexpr heed::place reference_place(const mine&);          // or a member mine::where
//   template <class T> void apply_reference(const mine&, heed::reference::state<T>&);
//
// apply_reference changes what its place owns (state.hpp): inputs q and k; scores and logits the
// entries, which are natural-log and scaled; probs the entries, which are probabilities; output
// out. What it writes to invisible entries is undone. Tokens of per-token tensors stand at
// [seq.batch, seq.first_key + j].
#pragma once

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/reference/alibi.hpp"
#include "heed/reference/bias.hpp"
#include "heed/reference/cope.hpp"
#include "heed/reference/fox.hpp"
#include "heed/reference/mta.hpp"
#include "heed/reference/path.hpp"
#include "heed/reference/relative.hpp"
#include "heed/reference/rope.hpp"
#include "heed/reference/sinks.hpp"
#include "heed/reference/softcap.hpp"
#include "heed/reference/softmax.hpp"
#include "heed/reference/state.hpp"
#include "heed/reference/visibility.hpp"

namespace heed::inline HEED_ABI::reference {

// The place of a mechanism that names it itself.
template <class M>
requires requires {
  M::where;
}
constexpr place reference_place(const M&) {
  return M::where;
}

// One mechanism behind a run-time interface. It borrows the tensors, not the mechanism.
template <class T>
struct step {
  place where;
  std::function<void(const problem&, const mask&)> check;
  std::function<void(state<T>&)> apply;
};

// A list of mechanisms that is put together at run time.
template <class T>
class steps {
 public:
  // An mta stands for its stages; a mechanism that is not active() for nothing.
  template <class M>
  steps& add(const M& m) {
    static_assert(
        requires(state<T> & s) { apply_reference(m, s); },
        "heed: reference: the mechanism has no apply_reference(mechanism, state)");
    static_assert(
        requires { reference_place(m); },
        "heed: reference: the mechanism has neither reference_place nor where");
    if constexpr (requires { m.active(); }) {
      if (!m.active()) return *this;
    }
    list_.push_back({reference_place(m),
                     [m](const problem& p, const mask& k) { check_mechanism(m, p, k); },
                     [m](state<T>& s) { apply_reference(m, s); }});
    return *this;
  }
  template <class... Stages>
  steps& add(const mta<Stages...>& m) {
    std::apply([&](const auto&... stage) { (add(stage), ...); }, m.stages());
    return *this;
  }

  // As they were added.
  const std::vector<step<T>>& list() const noexcept { return list_; }

 private:
  std::vector<step<T>> list_;
};

namespace detail {

template <class T>
state<T> start(const problem& call, const mask& m, const sequence& seq,
               const tensor_view<const T, 4>& q, const tensor_view<const T, 4>& k,
               const tensor_view<const T, 4>& v) {
  state<T> s;
  s.call = call;
  s.seq = seq;
  s.scale = static_cast<T>(call.scale);
  const auto copy = [&](const tensor_view<const T, 4>& from, index first, index tokens) {
    table<T> to(from.extent(2), tokens, from.extent(3));
    for (index h = 0; h < from.extent(2); ++h) {
      for (index t = 0; t < tokens; ++t) {
        for (index c = 0; c < from.extent(3); ++c) to(h, t, c) = from(seq.batch, first + t, h, c);
      }
    }
    return to;
  };
  s.caller_q = s.q = copy(q, seq.first_query, seq.T);
  s.k = copy(k, seq.first_key, seq.S);
  s.v = copy(v, seq.first_key, seq.S);
  s.visible = table<char>(call.Hq, seq.T, seq.S);
  for (index h = 0; h < call.Hq; ++h) {
    for (index i = 0; i < seq.T; ++i) {
      for (index j = 0; j < seq.S; ++j) s.visible(h, i, j) = sees(m, seq, h, i, j);
    }
  }
  s.entries = table<T>(call.Hq, seq.T, seq.S, state<T>::minus_infinity);
  s.sink.assign(static_cast<std::size_t>(call.Hq), state<T>::minus_infinity);
  s.out = table<T>(call.Hq, seq.T, call.Dv);
  s.lse = table<T>(1, call.Hq, seq.T);
  return s;
}

// Applies the steps of one place; afterwards invisible entries hold `invisible`.
template <class T>
void run(const std::vector<step<T>>& list, place where, T invisible, state<T>& s) {
  for (const step<T>& one : list) {
    if (one.where != where) continue;
    one.apply(s);
    for (index h = 0; h < s.call.Hq; ++h) {
      for (index i = 0; i < s.seq.T; ++i) {
        for (index j = 0; j < s.seq.S; ++j) {
          if (!s.visible(h, i, j)) s.entries(h, i, j) = invisible;
        }
      }
    }
  }
}

}  // namespace detail

// attend with a list that was put together at run time.
template <class T>
void attend(std::type_identity_t<tensor_view<const T, 4>> q,
            std::type_identity_t<tensor_view<const T, 4>> k,
            std::type_identity_t<tensor_view<const T, 4>> v, tensor_view<T, 4> out,
            const std::type_identity_t<attend_options<T>>& options, const steps<T>& mechanisms) {
  const problem call = make_problem<T>(q, k, v, out, options);
  const std::vector<step<T>>& list = mechanisms.list();
  index scores = 0;
  for (const step<T>& one : list) {
    one.check(call, options.mask);
    scores += one.where == place::scores ? 1 : 0;
  }
  if (scores > 1) {
    throw shape_error("heed: attend: " + std::to_string(scores) +
                      " mechanisms replace the scores, expected at most 1");
  }
  for (const sequence& seq : sequences(call, options.mask)) {
    state<T> s = detail::start<T>(call, options.mask, seq, q, k, v);
    constexpr T hidden = state<T>::minus_infinity;
    detail::run(list, place::inputs, hidden, s);
    if (scores == 0) dot_products(s);
    detail::run(list, place::scores, hidden, s);
    detail::run(list, place::logits, hidden, s);
    softmax(s);
    detail::run(list, place::probs, T(0), s);
    weighted_values(s);
    detail::run(list, place::output, T(0), s);
    for (index h = 0; h < call.Hq; ++h) {
      for (index i = 0; i < seq.T; ++i) {
        const index row = seq.first_query + i;
        for (index c = 0; c < call.Dv; ++c) out(seq.batch, row, h, c) = s.out(h, i, c);
        if (options.lse.data() != nullptr) options.lse(seq.batch, row, h) = s.lse(0, h, i);
      }
    }
  }
}

// The reference of heed::attend: same arguments, same results but for rounding. T x S entries per
// head; options that only concern speed are ignored. Pruning prunes nothing.
//
// Throws shape_error when shapes, mask or mechanisms do not fit together; nothing is written then.
template <class T, class... Mechanisms>
void attend(std::type_identity_t<tensor_view<const T, 4>> q,
            std::type_identity_t<tensor_view<const T, 4>> k,
            std::type_identity_t<tensor_view<const T, 4>> v, tensor_view<T, 4> out,
            const std::type_identity_t<attend_options<T>>& options = {},
            const Mechanisms&... mechanisms) {
  steps<T> list;
  (list.add(mechanisms), ...);
  attend<T>(q, k, v, out, options, list);
}

}  // namespace heed::inline HEED_ABI::reference
