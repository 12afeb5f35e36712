// The contract of the reverse sweep: what a mechanism offers so that attend_grad can differentiate
// it. Every gradient hook stands directly under the forward hook whose line it answers.
//
// The sweep. A row block is swept from its oldest panel to its newest; the panels' logits are
// computed again with the stages' forward hooks. What forward and advance change from panel to
// panel is put back first, from copies that a sweep in the forward direction leaves (carries). Per
// panel: scores, logits stages, P = exp(L - lse), probs stages; then dP = dO V^T, the probs stages'
// backward in reverse order, dL = P (dP - delta), the logits stages' backward in reverse order, and
// the scores' own. delta_i = sum over j of P_ij dP_ij, less the gradient of the log-sum-exp; it is
// dO.out where no stage acts after softmax, and one more reverse sweep otherwise.
//
// Everything is linear in dO, and a row block only brings in the dO of its own rows. Gradients of
// the halo rows above it are the block's own share; shares add up, in the order of the row blocks.
// One task does all row blocks of a gradient owner: the heads that share keys or mix, in one
// sequence. So results are the same bits for any number of threads.
//
//   place inputs   plan    queries_grad(head, row_begin, row_end, T* rows, ld), keys_grad(kv_head,
//                          key_begin, key_end, T* rows, ld): the gradient of what queries or keys
//                          put out becomes that of what they were given, in place
//   place scores   stage   source_gradient(...) -> Gradient: reverse_dot.hpp; no sums
//   place logits,  rows    carries(visit): visit(pointer, count) for all that forward or advance
//   place probs            change from panel to panel; may be left out when nothing does.
//                          hook::forward_carries: forward does (advance alone is not enough)
//                  rows    begin_backward(reverse_context, Sums&): before the first panel; twice
//                          where stages act after softmax. The reverse carries begin here; memory
//                          from context.memory lives to the end of the sweep
//                  rows    backward(reverse_panel): below
//                  rows    retreat(key_begin, key_end): the reverse sweep leaves these columns
//                          (also those that backward never came for)
//                  rows    end_backward(dq): behind the newest panel; dq.row(g, r) + d += ... adds
//                  to
//                          the gradient of the caller's q
//                  plan    denominator_grad(head, sum, Sums&): `sum` is the gradient of that logit
//   place output   plan    output_grad(head, row, const T* line, T* gradient, Sums&, scratch):
//                          `line` is what output was given; the gradient of what it made of it
//                          becomes the gradient of `line`, in place
//
// A stage with forward and without backward lists hook::adds where what it adds does not depend on
// the logits: the identity is its adjoint. A hook that is missing otherwise does not compile.
//
// Gradients of tensors that a mechanism holds. Its gradient_type is an aggregate of views with the
// names of its tensors; a view without data is not wanted.
//
//   stage   gradients(gradient_type, f): f("log_f", view, tensor) for each. The driver checks them
//           and, unless they accumulate, sets them to 0
//   stage   sums(gradient_type, owner_context) -> Sums: what one gradient owner adds up, set to 0,
//           in memory from context.memory. Trivially destructible; Sums{} adds up nothing, and is
//           what the first of two reverse sweeps gets
//   Sums    reduce(), optional: adds to the views. Called one owner after the other in a fixed
//           order. Elements that belong to one owner alone can be added to directly, at any time
//   stage   turns(problem, gradient_type) -> heed::turns, optional: where sums share elements and
//           are too large for copies, owners take turns
#pragma once

#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/kernel/pipeline.hpp"

namespace heed::inline HEED_ABI {

// Which gradient owners may be at work at the same time: all, those of one sequence, or one.
enum class turns { none, sequences, owners };

// Rows of some heads: element d of row r of head g at row(g, r)[d].
template <class T>
struct head_rows {
  T* data = nullptr;
  index head_stride = 0, row_stride = 0;

  T* row(index g, index r) const noexcept { return data + g * head_stride + r * row_stride; }
};

// begin_backward(context, sums): as rows(context), and what the reverse sweep adds to.
template <class T, class Arch>
struct reverse_context {
  using value_type = T;
  using arch = Arch;
  const rows_context<T, Arch>& rows;
  // Of v: key j of key/value head kv_head + n of the call at values.row(n, j); no data: not wanted.
  head_rows<T> values;
  index kv_head;
  workspace& memory;
};

// What backward(panel) works on. `data` holds the gradient of what forward put out, and takes the
// gradient of what forward was given; rows, columns, heads and bounds are those of that forward
// call. Coming in, invisible entries are exactly 0, and so are rows from 0 to `begin` and columns
// beyond [first, last): a stage that looks beside its element adds to those of them that it read.
// Columns newer than the panel that it read are in the panel that comes next: a carry. Going out,
// the driver sets the gradient of invisible entries (for a stage that reads zeros, also of those
// that were -inf) to 0.
//
// `kept` is what forward was given (hook::keeps_input), after the driver's zeros, or what it put
// out (hook::keeps_output).
template <class T, class Arch>
struct reverse_panel : panel<T, Arch> {
  const T* kept = nullptr;

  const T* kept_line(index g, index r) const noexcept {
    return kept + g * this->head_stride + (r - this->origin) * this->row_stride;
  }
};

// A mechanism together with where its gradients go: use with_grad.
template <class Mechanism>
struct differentiated : Mechanism {
  typename Mechanism::gradient_type destination;
};

// In the list of attend_grad, with_grad(fox{log_f}, fox_grad{d_log_f}) stands for the mechanism and
// asks for the gradients of its tensors, as far as the second value holds views for them. Without
// it a mechanism gets no gradients of its own, and they cost nothing. attend takes it, too, and
// looks at the mechanism only.
template <class Mechanism>
auto with_grad(const Mechanism& mechanism, const typename Mechanism::gradient_type& destination) {
  return differentiated<Mechanism>{mechanism, destination};
}

namespace kernel {

template <class Stage>
struct stage_gradient {
  struct type {};
};
template <class Stage>
requires requires {
  typename Stage::gradient_type;
}
struct stage_gradient<Stage> {
  using type = typename Stage::gradient_type;
};

// Where a stage's gradients go; an empty value for a stage that was not given any place.
template <class Stage>
auto destination_of(const Stage& stage) {
  if constexpr (requires { stage.destination; }) {
    return stage.destination;
  } else {
    return typename stage_gradient<Stage>::type{};
  }
}

struct no_sums {};

// f(element, number), the number as a compile-time constant.
template <class Tuple, class F>
constexpr void for_each_numbered(Tuple&& tuple, F&& f) {
  [&]<std::size_t... N>(std::index_sequence<N...>) {
    (f(std::get<N>(tuple), std::integral_constant<std::size_t, N>{}), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<Tuple>>>{});
}
// The same from the last element to the first.
template <class Tuple, class F>
constexpr void for_each_reversed(Tuple&& tuple, F&& f) {
  constexpr std::size_t size = std::tuple_size_v<std::remove_cvref_t<Tuple>>;
  [&]<std::size_t... N>(std::index_sequence<N...>) {
    (f(std::get<size - 1 - N>(tuple), std::integral_constant<std::size_t, size - 1 - N>{}), ...);
  }
  (std::make_index_sequence<size>{});
}

template <class Tuple>
bool any_active(const Tuple& stages) {
  bool any = false;
  for_each(stages, [&](const auto& stage) { any = any || is_active(stage); });
  return any;
}
// Whether an active stage lists a hook.
template <class Tuple>
bool any_lists(const Tuple& stages, hook one) {
  bool any = false;
  for_each(stages, [&](const auto& stage) {
    any = any || (has_hook<std::remove_cvref_t<decltype(stage)>>(one) && is_active(stage));
  });
  return any;
}

template <class Stage, class T, class Arch>
auto make_sums(const Stage& stage, const owner_context<T, Arch>& context) {
  if constexpr (has_hook<Stage>(hook::sums)) {
    return stage.sums(destination_of(stage), context);
  } else {
    return no_sums{};
  }
}
template <class Stage, class T, class Arch>
using sums_of = decltype(make_sums(std::declval<const Stage&>(),
                                   std::declval<const owner_context<T, Arch>&>()));

template <class Stages, class T, class Arch>
struct sums_tuple;
template <class... Stages, class T, class Arch>
struct sums_tuple<std::tuple<Stages...>, T, Arch> {
  using type = std::tuple<sums_of<Stages, T, Arch>...>;
};

// The sums of one gradient owner.
template <class T, class Arch, class List>
struct sums_set {
  typename sums_tuple<typename List::logits_type, T, Arch>::type logits;
  typename sums_tuple<typename List::probs_type, T, Arch>::type probs;
  typename sums_tuple<typename List::output_type, T, Arch>::type output;

  sums_set() = default;
  sums_set(const List& list, const owner_context<T, Arch>& c)
      : logits(made(list.logits, c)), probs(made(list.probs, c)), output(made(list.output, c)) {}

  void reduce() {
    const auto each = [](auto& sums) {
      if constexpr (requires { sums.reduce(); }) sums.reduce();
    };
    for_each(logits, each);
    for_each(probs, each);
    for_each(output, each);
  }

 private:
  template <class... Stages>
  static auto made(const std::tuple<Stages...>& stages, const owner_context<T, Arch>& c) {
    return std::apply(
        [&](const auto&... s) {
          return std::tuple<sums_of<Stages, T, Arch>...>(make_sums(s, c)...);
        },
        stages);
  }
};

// What attend_grad asks of a stage beyond what attend does.
template <class Stage>
constexpr bool check_reverse() {
  static_assert(Stage::where != place::scores || has_source_gradient<Stage>,
                "heed: attend_grad: a mechanism of place scores has no source_gradient");
  static_assert(!has_hook<Stage>(hook::forward) || has_hook<Stage>(hook::backward) ||
                    has_hook<Stage>(hook::adds),
                "heed: attend_grad: a mechanism of the list has forward but no backward: add it, "
                "or list hook::adds where what it adds does not depend on the logits");
  static_assert(has_hook<Stage>(hook::queries) == has_hook<Stage>(hook::queries_grad),
                "heed: attend_grad: queries and queries_grad belong together");
  static_assert(has_hook<Stage>(hook::keys) == has_hook<Stage>(hook::keys_grad),
                "heed: attend_grad: keys and keys_grad belong together");
  static_assert(has_hook<Stage>(hook::output) == has_hook<Stage>(hook::output_grad),
                "heed: attend_grad: output and output_grad belong together");
  static_assert(has_hook<Stage>(hook::denominator) == has_hook<Stage>(hook::denominator_grad),
                "heed: attend_grad: denominator and denominator_grad belong together");
  static_assert(!has_hook<Stage>(hook::forward_carries) || has_hook<Stage>(hook::carries),
                "heed: attend_grad: hook::forward_carries says that forward moves a carry: the "
                "mechanism must show it through carries(visit)");
  static_assert(Stage::where == place::scores ||
                    has_hook<Stage>(hook::sums) == has_hook<Stage>(hook::gradients),
                "heed: attend_grad: gradients and sums belong together");
  return true;
}

}  // namespace kernel

}  // namespace heed::inline HEED_ABI
