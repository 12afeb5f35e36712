// From the caller's list of mechanisms to typed tuples of stages by place, checked.
#pragma once

#include <array>
#include <tuple>
#include <utility>

#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/panel.hpp"

namespace heed::inline HEED_ABI {

template <class Mechanism>
struct differentiated;  // kernel/reverse.hpp

// The mechanism alone, of what with_grad made.
template <class Mechanism>
constexpr const Mechanism& without_grad(const Mechanism& mechanism) noexcept {
  return mechanism;
}
template <class Mechanism>
constexpr const Mechanism& without_grad(const differentiated<Mechanism>& mechanism) noexcept {
  return mechanism;
}

}  // namespace heed::inline HEED_ABI

namespace heed::inline HEED_ABI::kernel {

// True where X has a member of that name, of whatever kind: the name becomes ambiguous in a class
// that inherits it twice.
#define HEED_MEMBER_PROBE(name)                \
  struct name##_in_probe {                     \
    int name;                                  \
  };                                           \
  template <class X>                           \
  struct name##_probe : X, name##_in_probe {}; \
  template <class X>                           \
  concept has_##name = !requires {             \
    &name##_probe<X>::name;                    \
  };
HEED_MEMBER_PROBE(check)
HEED_MEMBER_PROBE(geometry)
HEED_MEMBER_PROBE(active)
HEED_MEMBER_PROBE(plan)
HEED_MEMBER_PROBE(queries)
HEED_MEMBER_PROBE(keys)
HEED_MEMBER_PROBE(rows)
HEED_MEMBER_PROBE(denominator)
HEED_MEMBER_PROBE(output)
HEED_MEMBER_PROBE(enter)
HEED_MEMBER_PROBE(forward)
HEED_MEMBER_PROBE(advance)
HEED_MEMBER_PROBE(column_bias)
HEED_MEMBER_PROBE(row_bias)
HEED_MEMBER_PROBE(mergeable)
HEED_MEMBER_PROBE(constant_from_here)
HEED_MEMBER_PROBE(ceiling)
HEED_MEMBER_PROBE(prunes)
HEED_MEMBER_PROBE(gradients)
HEED_MEMBER_PROBE(sums)
HEED_MEMBER_PROBE(queries_grad)
HEED_MEMBER_PROBE(keys_grad)
HEED_MEMBER_PROBE(denominator_grad)
HEED_MEMBER_PROBE(output_grad)
HEED_MEMBER_PROBE(carries)
HEED_MEMBER_PROBE(begin_backward)
HEED_MEMBER_PROBE(backward)
HEED_MEMBER_PROBE(retreat)
HEED_MEMBER_PROBE(end_backward)
HEED_MEMBER_PROBE(source_gradient)
HEED_MEMBER_PROBE(tokens)
HEED_MEMBER_PROBE(keep)
#undef HEED_MEMBER_PROBE

template <class Stage>
concept names_its_place = requires {
  { Stage::where } -> std::convertible_to<place>;
};
template <class Stage>
concept lists_its_hooks = requires {
  { Stage::hooks } -> std::convertible_to<hook>;
};
template <class Mechanism>
concept expands_to_stages = requires(const Mechanism& m) {
  m.stages();
};

template <class Stage>
constexpr bool has_hook(hook h) noexcept {
  return lists(Stage::hooks, h);
}

template <class Stage, class T, class Arch>
constexpr decltype(auto) make_plan(const Stage& stage, const plan_context<T, Arch>& context) {
  if constexpr (has_hook<Stage>(hook::plan)) {
    return stage.plan(context);
  } else {
    return Stage(stage);
  }
}
template <class Stage, class Plan, class T, class Arch>
constexpr decltype(auto) make_rows(const Plan& plan, const rows_context<T, Arch>& context) {
  if constexpr (has_hook<Stage>(hook::rows)) {
    return plan.rows(context);
  } else {
    return Plan(plan);
  }
}
template <class Stage, class T, class Arch>
using plan_of =
    decltype(make_plan(std::declval<const Stage&>(), std::declval<plan_context<T, Arch>&>()));
template <class Stage, class T, class Arch>
using rows_of = decltype(make_rows<Stage>(std::declval<const plan_of<Stage, T, Arch>&>(),
                                          std::declval<rows_context<T, Arch>&>()));

// Listed if and only if present, for every hook of every level.
template <class Stage>
constexpr void check_stage_level() {
#define HEED_LISTED_IS_PRESENT(Where, name, level)                               \
  static_assert(!has_hook<Stage>(hook::name) || has_##name<Where>,               \
                "heed: a mechanism lists hook::" #name " but its " level         \
                " has no member of that name (misspelt, or on another level?)"); \
  static_assert(has_hook<Stage>(hook::name) || !has_##name<Where>,               \
                "heed: the " level " of a mechanism has a member " #name         \
                " that its `hooks` do not list: add hook::" #name                \
                ", or it would never be called");
  HEED_LISTED_IS_PRESENT(Stage, check, "stage")
  HEED_LISTED_IS_PRESENT(Stage, geometry, "stage")
  HEED_LISTED_IS_PRESENT(Stage, active, "stage")
  HEED_LISTED_IS_PRESENT(Stage, plan, "stage")
  HEED_LISTED_IS_PRESENT(Stage, prunes, "stage")
  HEED_LISTED_IS_PRESENT(Stage, gradients, "stage")
  HEED_LISTED_IS_PRESENT(Stage, sums, "stage")
  HEED_LISTED_IS_PRESENT(Stage, tokens, "stage")
  HEED_LISTED_IS_PRESENT(Stage, keep, "stage")
}
template <class Stage, class Plan>
constexpr void check_plan_level() {
  HEED_LISTED_IS_PRESENT(Plan, queries, "plan")
  HEED_LISTED_IS_PRESENT(Plan, keys, "plan")
  HEED_LISTED_IS_PRESENT(Plan, rows, "plan")
  HEED_LISTED_IS_PRESENT(Plan, denominator, "plan")
  HEED_LISTED_IS_PRESENT(Plan, output, "plan")
  HEED_LISTED_IS_PRESENT(Plan, queries_grad, "plan")
  HEED_LISTED_IS_PRESENT(Plan, keys_grad, "plan")
  HEED_LISTED_IS_PRESENT(Plan, denominator_grad, "plan")
  HEED_LISTED_IS_PRESENT(Plan, output_grad, "plan")
  static_assert(std::is_trivially_destructible_v<Plan>,
                "heed: the plan of a mechanism must be trivially destructible: it lives in a "
                "workspace, which runs no destructors");
}
template <class Stage, class Rows>
constexpr void check_rows_level() {
  HEED_LISTED_IS_PRESENT(Rows, enter, "rows")
  HEED_LISTED_IS_PRESENT(Rows, forward, "rows")
  HEED_LISTED_IS_PRESENT(Rows, advance, "rows")
  HEED_LISTED_IS_PRESENT(Rows, column_bias, "rows")
  HEED_LISTED_IS_PRESENT(Rows, row_bias, "rows")
  HEED_LISTED_IS_PRESENT(Rows, ceiling, "rows")
  HEED_LISTED_IS_PRESENT(Rows, constant_from_here, "rows")
  HEED_LISTED_IS_PRESENT(Rows, carries, "rows")
  HEED_LISTED_IS_PRESENT(Rows, begin_backward, "rows")
  HEED_LISTED_IS_PRESENT(Rows, backward, "rows")
  HEED_LISTED_IS_PRESENT(Rows, retreat, "rows")
  HEED_LISTED_IS_PRESENT(Rows, end_backward, "rows")
#undef HEED_LISTED_IS_PRESENT
  static_assert(std::is_trivially_destructible_v<Rows>,
                "heed: the rows of a mechanism must be trivially destructible: they live in a "
                "workspace, which runs no destructors");
  static_assert(!has_hook<Stage>(hook::column_bias) || has_hook<Stage>(hook::forward),
                "heed: a mechanism with column_bias must have forward too: the sweep uses "
                "column_bias only where every stage of the list has it");
}
template <class Stage>
constexpr void check_place() {
  constexpr place at = Stage::where;
  static_assert(!has_hook<Stage>(hook::forward) || at == place::logits || at == place::probs,
                "heed: forward belongs to a mechanism of place logits or probs");
  static_assert(
      at == place::inputs || !(has_hook<Stage>(hook::queries) || has_hook<Stage>(hook::keys)),
      "heed: queries and keys belong to a mechanism of place inputs");
  static_assert(at == place::output || !has_hook<Stage>(hook::output),
                "heed: output belongs to a mechanism of place output");
}

template <class Stage, class T, class Arch>
constexpr bool check_stage() {
  static_assert(names_its_place<Stage>,
                "heed: a mechanism must name its place: static constexpr heed::place where = ...");
  static_assert(lists_its_hooks<Stage>,
                "heed: a mechanism must list its hooks: static constexpr heed::hook hooks = ...");
  if constexpr (names_its_place<Stage> && lists_its_hooks<Stage>) {
    check_stage_level<Stage>();
    check_place<Stage>();
    // A listed hook that is missing has been reported; deriving the plan from it would only bury
    // that sentence.
    if constexpr (has_hook<Stage>(hook::plan) == has_plan<Stage> && Stage::where != place::scores) {
      using Plan = plan_of<Stage, T, Arch>;
      check_plan_level<Stage, Plan>();
      if constexpr (has_hook<Stage>(hook::rows) == has_rows<Plan>) {
        check_rows_level<Stage, rows_of<Stage, T, Arch>>();
      }
    }
  }
  return true;
}

template <class Mechanism>
constexpr auto expand(const Mechanism& m) {
  if constexpr (expands_to_stages<Mechanism>) {
    return m.stages();
  } else {
    return std::tuple<Mechanism>(m);
  }
}

// A forward sweep does not look at gradients: lists with and without them are one to it.
template <class... Stages>
constexpr auto without_grads(const std::tuple<Stages...>& all) {
  return std::apply([](const auto&... s) { return std::make_tuple(without_grad(s)...); }, all);
}

template <place Where, class Stage>
constexpr auto keep_if_at(const Stage& stage) {
  if constexpr (Stage::where == Where) {
    return std::tuple<Stage>(stage);
  } else {
    return std::tuple<>();
  }
}
// The stages of one place, in the caller's order.
template <place Where, class... Stages>
constexpr auto stages_at(const std::tuple<Stages...>& all) {
  return std::apply([](const auto&... s) { return std::tuple_cat(keep_if_at<Where>(s)...); }, all);
}

template <class Tuple, class F>
constexpr void for_each(Tuple&& tuple, F&& f) {
  std::apply([&](auto&&... element) { (f(element), ...); }, tuple);
}
// f(element of a, element of b) pairwise.
template <class A, class B, class F>
constexpr void for_each_pair(A&& a, B&& b, F&& f) {
  [&]<std::size_t... N>(std::index_sequence<N...>) {
    (f(std::get<N>(a), std::get<N>(b)), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<A>>>{});
}

template <class Stage>
bool is_active(const Stage& stage) {
  if constexpr (has_hook<Stage>(hook::active)) {
    return stage.active();
  } else {
    return true;
  }
}
template <class Stage>
geometry geometry_of(const Stage& stage) {
  if constexpr (has_hook<Stage>(hook::geometry)) {
    return is_active(stage) ? stage.geometry() : geometry{};
  } else {
    return {};
  }
}

// Whether results with this stage can be joined from parts of the keys.
template <class Stage>
bool joins(const Stage& stage) {
  if (!is_active(stage)) return true;
  if (Stage::where == place::probs || Stage::where == place::output) return false;
  const geometry g = geometry_of(stage);
  return !has_hook<Stage>(hook::forward_carries) && g.older_cols + g.newer_cols == 0;
}

template <class T, class Arch, class... Stages>
constexpr auto plans_for(const std::tuple<Stages...>& stages, const plan_context<T, Arch>& c) {
  return std::apply(
      [&](const auto&... s) { return std::tuple<plan_of<Stages, T, Arch>...>(make_plan(s, c)...); },
      stages);
}
template <class T, class Arch, class... Stages, class Plans>
constexpr auto rows_for(const std::tuple<Stages...>&, const Plans& plans,
                        const rows_context<T, Arch>& c) {
  return std::apply(
      [&](const auto&... p) {
        return std::tuple<rows_of<Stages, T, Arch>...>(make_rows<Stages>(p, c)...);
      },
      plans);
}

}  // namespace heed::inline HEED_ABI::kernel
