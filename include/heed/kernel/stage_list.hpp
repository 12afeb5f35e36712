// The stages of one call by place, and what follows from their geometries.
#pragma once

#include <memory>
#include <numeric>
#include <type_traits>

#include "heed/checks.hpp"
#include "heed/kernel/dot.hpp"

namespace heed::inline HEED_ABI::kernel {

// The one stage of place scores, or the plain dot product.
template <class... Stages>
constexpr auto score_stage(const std::tuple<Stages...>& listed) {
  static_assert(sizeof...(Stages) <= 1,
                "heed: at most one mechanism of place scores can be in the list");
  if constexpr (sizeof...(Stages) == 0) {
    return dot{};
  } else {
    return std::get<0>(listed);
  }
}

// Rows and columns that stages read around an element, summed along the pipeline.
struct reach {
  index rows_above = 0;  // halo rows that a row block needs above its own
  index older = 0;       // columns that the pipeline's output lags behind its input
  index newer = 0;
};

template <class Tuple>
reach reach_of(const Tuple& stages) {
  reach sum;
  for_each(stages, [&](const auto& stage) {
    const geometry g = geometry_of(stage);
    sum.rows_above += g.rows_above;
    sum.older += g.older_cols;
    sum.newer += g.newer_cols;
  });
  return sum;
}

// What may be left out when several stages allow it: by the strictest tolerance and the smallest
// bound.
template <class Tuple>
pruning pruning_of(const Tuple& stages) {
  pruning all{0, 0};
  const auto tighten = [](double& known, double given) {
    if (given > 0 && (known == 0 || given < known)) known = given;
  };
  for_each(stages, [&](const auto& stage) {
    if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::prunes)) {
      if (!is_active(stage)) return;
      const pruning one = stage.prunes();
      tighten(all.tolerance, one.tolerance);
      if (one.tolerance > 0) tighten(all.logit_bound, one.logit_bound);
    }
  });
  return all;
}

// What the reverse sweep of a list asks of the forward one: rows of the output before the stages of
// place output, and how far blocks were swept.
template <class All>
bool saves_rows(const All& all) {
  bool any = false;
  for_each(all, [&](const auto& stage) {
    any = any || (std::remove_cvref_t<decltype(stage)>::where == place::output && is_active(stage));
  });
  return any;
}
template <class All>
bool saves_panels(const All& all) {
  return pruning_of(all).tolerance > 0;
}

// Everything the caller listed, sorted into places.
template <class All>
struct stage_list {
  using inputs_type = decltype(stages_at<place::inputs>(std::declval<const All&>()));
  using logits_type = decltype(stages_at<place::logits>(std::declval<const All&>()));
  using probs_type = decltype(stages_at<place::probs>(std::declval<const All&>()));
  using output_type = decltype(stages_at<place::output>(std::declval<const All&>()));
  using scores_type = decltype(score_stage(stages_at<place::scores>(std::declval<const All&>())));
  // Whether every stage of place logits may come to add one number per row only.
  static constexpr bool can_settle = []<class... S>(std::type_identity<std::tuple<S...>>) {
    return (has_hook<S>(hook::constant_from_here) || ...) &&
           ((has_hook<S>(hook::constant_from_here) || !has_hook<S>(hook::forward)) && ...);
  }(std::type_identity<logits_type>{});
  static constexpr bool can_prune = []<class... S>(std::type_identity<std::tuple<S...>>) {
    return (has_hook<S>(hook::prunes) || ...);
  }(std::type_identity<All>{});

  inputs_type inputs;
  scores_type scores;
  logits_type logits;
  probs_type probs;
  output_type output;
  reach logits_reach, probs_reach;
  index heads_mixed = 1;       // heads that must share a panel
  bool after_softmax = false;  // an active stage of place probs: two sweeps
  pruning prune;               // tolerance 0: every visible key counts

  explicit stage_list(const All& all)
      : inputs(stages_at<place::inputs>(all)),
        scores(score_stage(stages_at<place::scores>(all))),
        logits(stages_at<place::logits>(all)),
        probs(stages_at<place::probs>(all)),
        output(stages_at<place::output>(all)),
        logits_reach(reach_of(logits)),
        probs_reach(reach_of(probs)),
        prune(pruning_of(all)) {
    for_each(all, [&](const auto& stage) {
      heads_mixed = std::lcm(heads_mixed, geometry_of(stage).heads_mixed);
    });
    for_each(probs, [&](const auto& stage) { after_softmax |= is_active(stage); });
  }
};

// The plans of one sequence.
template <class T, class Arch, class List>
struct plan_set {
  using context_type = plan_context<T, Arch>;
  context_type context;
  decltype(plans_for(std::declval<const typename List::inputs_type&>(),
                     std::declval<const context_type&>())) inputs;
  decltype(plans_for(std::declval<const typename List::logits_type&>(),
                     std::declval<const context_type&>())) logits;
  decltype(plans_for(std::declval<const typename List::probs_type&>(),
                     std::declval<const context_type&>())) probs;
  decltype(plans_for(std::declval<const typename List::output_type&>(),
                     std::declval<const context_type&>())) output;

  plan_set(const List& list, const context_type& c)
      : context(c),
        inputs(plans_for(list.inputs, c)),
        logits(plans_for(list.logits, c)),
        probs(plans_for(list.probs, c)),
        output(plans_for(list.output, c)) {}
};

template <class T, class Arch, class Stages>
struct loader_of;
template <class T, class Arch, class... Stages>
struct loader_of<T, Arch, std::tuple<Stages...>> {
  using type = key_loader<T, Arch, Stages...>;
};

// What the sequences of one wave are asked through: their masks, plans and loaders of keys, which
// live in `memory`. Sequences [first, first + count) of the call.
template <class T, class Arch, class List>
struct wave_sequences {
  using loader_type = typename loader_of<T, Arch, typename List::inputs_type>::type;
  visibility* visible;
  plan_set<T, Arch, List>* plans;
  loader_type* loaders;

  wave_sequences(const List& list, const problem& p, const mask& m, const call_inputs<T>& inputs,
                 index first, index count, workspace& memory)
      : visible(memory.take<visibility>(count)),
        plans(memory.take<plan_set<T, Arch, List>>(count)),
        loaders(memory.take<loader_type>(count)) {
    for (index n = 0; n < count; ++n) {
      std::construct_at(visible + n, visibility{m, sequence_at(p, m, first + n)});
      std::construct_at(plans + n, list,
                        plan_context<T, Arch>{{p, visible[n].s, inputs, memory}, m});
      std::construct_at(loaders + n, loader_type{plans[n].context, list.inputs, plans[n].inputs});
    }
  }
};

}  // namespace heed::inline HEED_ABI::kernel
