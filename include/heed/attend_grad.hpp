// attend_grad: the gradients of attend, for any list of mechanisms.
#pragma once

#include "heed/attend.hpp"
#include "heed/kernel/reverse_block.hpp"
#include "heed/kernel/reverse_checks.hpp"

namespace heed::inline HEED_ABI {

namespace kernel {

// One call: gradient owners as tasks, each with its row blocks in order.
template <class T, class Arch, class All>
class reverse_call {
  using list_type = stage_list<All>;
  using plans_type = plan_set<T, Arch, list_type>;
  using loader_type = typename loader_of<T, Arch, typename list_type::inputs_type>::type;
  using source_type = decltype(std::declval<const typename list_type::scores_type&>().source(
      std::declval<const source_context<T, Arch>&>(), std::declval<const loader_type&>()));
  using gradient_type =
      decltype(std::declval<const typename list_type::scores_type&>().source_gradient(
          std::declval<const source_type&>(),
          destination_of(std::declval<const typename list_type::scores_type&>()),
          std::declval<const source_context<T, Arch>&>(), std::declval<const loader_type&>()));
  using unit_type = unit<T, Arch, list_type, source_type>;
  using reverse_type = reverse_unit<T, Arch, list_type, source_type, gradient_type>;
  using sums_type = sums_set<T, Arch, list_type>;

 public:
  reverse_call(const All& all, const problem& p, const call_inputs<T>& inputs,
               const grad_inputs<T>& given, const gradients<T>& grads, bool others_wanted,
               const attend_options<T>& options, workspace& memory, const saved_view<T>& saved)
      : list_(all),
        problem_(p),
        inputs_(inputs),
        given_(given),
        grads_(grads),
        logits_wanted_(others_wanted || grads.q.data() != nullptr || grads.k.data() != nullptr),
        options_(options),
        memory_(memory),
        saved_(saved),
        panel_heads_(list_.heads_mixed),
        owner_heads_(std::lcm(list_.heads_mixed, std::max<index>(1, p.group()))),
        sizes_(choose_reverse_sizes<T>(list_, p, options.tuning)) {}

  void run() {
    memory_.prepare_workers(options_.executor.workers());
    const index per_sequence = problem_.Hq / owner_heads_;
    const index owners = sequence_count(problem_, options_.mask) * per_sequence;
    for (index first = 0; first < owners;) {
      const workspace::scope wave(memory_);
      const index end = wave_end(first, owners, per_sequence);
      run_wave(first, end, per_sequence);
      first = end;
    }
    memory_.level_workers();
  }

 private:
  // At most this many owners at a time, whatever the number of threads: their sums all wait for the
  // end of the wave.
  static constexpr index longest_wave = 64;

  index wave_end(index first, index owners, index per_sequence) const {
    turns most = turns::none;
    const auto ask = [&](const auto& stage) {
      if constexpr (requires { stage.turns(problem_, destination_of(stage)); }) {
        if (is_active(stage)) most = (std::max)(most, stage.turns(problem_, destination_of(stage)));
      }
    };
    for_each(list_.logits, ask);
    for_each(list_.probs, ask);
    for_each(list_.output, ask);
    if (most == turns::owners) return first + 1;
    index end = (std::min)(owners, first + longest_wave);
    if (most == turns::sequences) {
      end = (std::min)(end, (first / per_sequence + 1) * per_sequence);
    }
    return end;
  }

  void run_wave(index first, index end, index per_sequence) {
    const index first_sequence = first / per_sequence;
    const index sequences = (end - 1) / per_sequence - first_sequence + 1;
    const wave_sequences<T, Arch, list_type> wave(list_, problem_, options_.mask, inputs_,
                                                  first_sequence, sequences, memory_);
    visibility* const visible = wave.visible;
    plans_type* const plans = wave.plans;
    loader_type* const loaders = wave.loaders;
    auto* sums = memory_.take<sums_type>(end - first);
    for (index n = first; n < end; ++n) {
      const index at = n / per_sequence - first_sequence;
      std::construct_at(sums + (n - first), list_,
                        owner_context<T, Arch>{{problem_, visible[at].s, inputs_, memory_},
                                               n % per_sequence * owner_heads_,
                                               owner_heads_});
    }
    const auto work = [&](index task, index worker) {
      const index n = first + task, at = n / per_sequence - first_sequence;
      const workspace::scope owner(memory_.worker(worker));
      run_owner(visible[at], plans[at], loaders[at], sums[task], n % per_sequence * owner_heads_,
                memory_.worker(worker));
    };
    options_.executor.parallel_for(end - first, work);
    for (index n = first; n < end; ++n) sums[n - first].reduce();
  }

  index kv_heads() const noexcept { return owner_heads_ / std::max<index>(1, problem_.group()); }
  index first_kv(index head) const noexcept { return head / std::max<index>(1, problem_.group()); }

  // All row blocks of heads [head, head + owner_heads).
  void run_owner(const visibility& visible, const plans_type& plans, const loader_type& loader,
                 sums_type& sums, index head, workspace& scratch) const {
    const source_context<T, Arch> context{plans.context, first_kv(head), kv_heads(), false,
                                          wants_norms(list_)};
    source_type source = list_.scores.source(context, loader);
    source.take(scratch);
    for (index task = 0; task < source.tasks(); ++task) source.prepare(task, scratch);
    if constexpr (requires { source.seal(); }) source.seal();
    gradient_type gradient =
        list_.scores.source_gradient(source, destination_of(list_.scores), context, loader);
    gradient.take(scratch, {grads_.q.data() != nullptr, grads_.k.data() != nullptr});

    const sequence& s = visible.s;
    const head_rows<T> dvalues = take_dvalues(s, scratch);
    const unit_type forward{list_,
                            plans,
                            visible,
                            source,
                            {},
                            head,
                            owner_heads_,
                            tensor_view<T, 4>(const_cast<T*>(given_.out.data()),
                                              given_.out.extents(), given_.out.strides()),
                            {},
                            sizes_,
                            0,
                            saved_};
    const reverse_type unit{forward,
                            gradient,
                            sums,
                            given_.out,
                            given_.dout,
                            given_.lse,
                            grads_.lse,
                            grads_.q,
                            pack_values(s, head, scratch),
                            dvalues,
                            find_strange(s, head, scratch),
                            logits_wanted_};
    for (index part = 0; part < owner_heads_; part += panel_heads_) {
      for (index begin = 0; begin < s.T; begin += sizes_.rows) {
        const workspace::scope block(scratch);
        reverse_block<T, Arch, list_type, source_type, gradient_type>(
            unit, head + part, panel_heads_, begin, (std::min)(s.T, begin + sizes_.rows), scratch)
            .run();
      }
    }
    const head_rows<T> dkeys = gradient.keys(scratch);
    if (grads_.k.data() != nullptr) store_keys(s, plans, head, dkeys);
    if (grads_.v.data() != nullptr && problem_.Dv > 0) {
      for (index n = 0; n < kv_heads(); ++n) put_rows(dvalues, n, grads_.v, s, first_kv(head) + n);
    }
  }

  const T* raw_value(const sequence& s, index kv) const noexcept {
    return s.S == 0 || problem_.Dv == 0 ? nullptr
                                        : inputs_.v.pointer(s.batch, s.first_key, kv, index{0});
  }
  head_rows<const T> pack_values(const sequence& s, index head, workspace& scratch) const {
    if (!logits_wanted_) return {};
    const index size = packed_columns_size<Arch, T>(s.S, problem_.Dv);
    T* packed = scratch.take<T>(kv_heads() * size);
    for (index n = 0; n < kv_heads(); ++n) {
      pack_columns<Arch>(raw_value(s, first_kv(head) + n), inputs_.v.stride(1), inputs_.v.stride(3),
                         s.S, problem_.Dv, packed + n * size);
    }
    return {packed, size, 0};
  }
  head_rows<T> take_dvalues(const sequence& s, workspace& scratch) const {
    if (grads_.v.data() == nullptr) return {};
    const index ld = round_up(problem_.Dv, width<T, Arch>), size = kv_heads() * s.S * ld;
    const head_rows<T> rows{scratch.take<T>(size), s.S * ld, ld};
    for (index n = 0; n < size; ++n) rows.data[n] = T(0);
    return rows;
  }
  // Where keys or values are not finite.
  const bool* find_strange(const sequence& s, index head, workspace& scratch) const {
    const index blocks = (s.S + reverse_type::strange_keys - 1) / reverse_type::strange_keys;
    bool* strange = scratch.take<bool>(blocks);
    for (index b = 0; b < blocks; ++b) {
      const index from = b * reverse_type::strange_keys;
      const index count = (std::min)(reverse_type::strange_keys, s.S - from);
      bool finite = true;
      for (index n = 0; n < kv_heads() && finite; ++n) {
        finite = rows_finite<Arch>(inputs_.k, s, first_kv(head) + n, from, count) &&
                 rows_finite<Arch>(inputs_.v, s, first_kv(head) + n, from, count);
      }
      strange[b] = !finite;
    }
    return strange;
  }
  template <class A>
  static bool rows_finite(const tensor_view<const T, 4>& x, const sequence& s, index head,
                          index from, index count) noexcept {
    constexpr index w = width<T, A>;
    vec<T, A> sums(T(0));
    T sum = 0;
    for (index j = from; j < from + count && x.extent(3) > 0; ++j) {
      const T* row = x.pointer(s.batch, s.first_key + j, head, index{0});
      index d = 0;
      for (; d + w <= x.extent(3) && x.stride(3) == 1; d += w) {
        sums += load_vec<A>(row + d) * vec<T, A>(T(0));
      }
      for (; d < x.extent(3); ++d) sum += row[d * x.stride(3)] * 0;
    }
    return sum + sum_lanes(sums) == 0;
  }

  // Back through the input stages.
  void store_keys(const sequence& s, const plans_type& plans, index head,
                  const head_rows<T>& dkeys) const {
    for (index n = 0; n < kv_heads() && s.S > 0; ++n) {
      const index kv = first_kv(head) + n;
      for_each_reversed(list_.inputs, [&](const auto& stage, auto number) {
        if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::keys_grad)) {
          if (!is_active(stage)) return;
          std::get<decltype(number)::value>(plans.inputs)
              .keys_grad(kv, 0, s.S, dkeys.row(n, 0), dkeys.row_stride);
        }
      });
      put_rows(dkeys, n, grads_.k, s, kv);
    }
  }
  // Nobody else writes to the keys of these heads.
  void put_rows(const head_rows<T>& from, index n, const tensor_view<T, 4>& to, const sequence& s,
                index kv) const {
    const index count = to.extent(3), step = to.stride(3);
    for (index j = 0; j < s.S; ++j) {
      const T* line = from.row(n, j);
      T* out = to.pointer(s.batch, s.first_key + j, kv, index{0});
      if (grads_.accumulate) {
        for (index d = 0; d < count; ++d) out[d * step] += line[d];
      } else if (step == 1) {
        for (index d = 0; d < count; ++d) out[d] = line[d];
      } else {
        for (index d = 0; d < count; ++d) out[d * step] = line[d];
      }
    }
  }

  list_type list_;
  const problem& problem_;
  const call_inputs<T>& inputs_;
  const grad_inputs<T>& given_;
  const gradients<T>& grads_;
  bool logits_wanted_;
  const attend_options<T>& options_;
  workspace& memory_;
  saved_view<T> saved_;
  index panel_heads_, owner_heads_;
  block_sizes sizes_;
};

// What the forward sweep finds beside its output, found once more.
template <class T, class Arch, class All>
saved_view<T> find_saved(const All& all, const problem& p, const call_inputs<T>& in,
                         const tensor_view<T, 4>& out, attend_options<T> options,
                         workspace& memory) {
  using list_type = stage_list<All>;
  if constexpr (list_type::can_prune || std::tuple_size_v<typename list_type::output_type> != 0) {
    const saved_view<T> saved = take_saved<T>(p, saves_rows(all), saves_panels(all), memory);
    if (saved.rows == nullptr && saved.panels == nullptr) return {};
    options.lse = {};
    forward_call<T, Arch, All>(all, p, in, out, options, memory, saved).run();
    return saved;
  } else {
    return {};
  }
}

template <class T, class Arch, class... Mechanisms>
void attend_grad(const call_inputs<T>& in, const grad_inputs<T>& given, const gradients<T>& grads,
                 attend_options<T> options, const Mechanisms&... mechanisms) {
  options.lse = {};
  const tensor_view<T, 4> out(const_cast<T*>(given.out.data()), given.out.extents(),
                              given.out.strides());
  const problem p = make_problem(in.q, in.k, in.v, out, options);
  const auto all = std::tuple_cat(expand(mechanisms)...);
  std::apply(
      []<class... Stages>(const Stages&...) {
        static_assert((check_stage<Stages, T, Arch>() && ...));
        static_assert((check_reverse<Stages>() && ...));
      },
      all);
  for_each(all, [&](const auto& stage) { check_mechanism(stage, p, options.mask); });
  check_extents(
      "attend_grad", "dout", given.dout,
      {{{"batch", p.B}, {"queries", p.T}, {"query heads", p.Hq}, {"value head size", p.Dv}}});
  const auto check_rows = [&](const char* name, const tensor_view<const T, 3>& view) {
    check_extents("attend_grad", name, view,
                  {{{"batch", p.B}, {"queries", p.T}, {"query heads", p.Hq}}});
  };
  check_rows("lse", given.lse);
  if (grads.lse.data() != nullptr) check_rows("gradients.lse", grads.lse);
  grad_checks<T> checks(in, given, grads);
  checks.add("gradients.q", grads.q, in.q);
  checks.add("gradients.k", grads.k, in.k);
  checks.add("gradients.v", grads.v, in.v);
  bool others = false;
  const auto each = [&](const auto& f) {
    for_each(all, [&](const auto& stage) { each_gradient(stage, f); });
  };
  each([&](const char* name, const auto& view, const auto& like) {
    checks.add(std::string("gradient of ") + name, view, like);
    others = others || view.data() != nullptr;
  });
  checks.finish();
  using all_type = std::remove_const_t<decltype(all)>;
  saved_view<T> saved;
  if (options.saved != nullptr) {
    saved = options.saved->of(p, options.tuning, saves_rows(all), saves_panels(all));
  }

  if (!grads.accumulate) {
    set_zero(grads.q);
    if (p.T == 0 || p.Hq == 0) {  // else the tasks overwrite them
      set_zero(grads.k);
      set_zero(grads.v);
    }
    each([](const char*, const auto& view, const auto&) { set_zero(view); });
  }
  if (!others && grads.q.data() == nullptr && grads.k.data() == nullptr &&
      grads.v.data() == nullptr) {
    return;
  }
  if (p.B == 0 || p.T == 0 || p.Hq == 0) return;
  workspace own;
  workspace& memory = options.workspace != nullptr ? *options.workspace : own;
  memory.reset();
  if (options.saved == nullptr) {
    saved = find_saved<T, Arch>(without_grads(all), p, in, out, options, memory);
  }
  reverse_call<T, Arch, all_type>(all, p, in, given, grads, others, options, memory, saved).run();
}

}  // namespace kernel

// The gradients of sum(out * dout) + sum(lse * dlse) by everything that attend was given.
//
//   heed::attend(q, k, v, out, {.mask = heed::causal(), .lse = lse}, heed::fox{log_f});
//   heed::attend_grad(q, k, v, out, lse, dout, {.q = dq, .k = dk, .v = dv},
//                     {.mask = heed::causal()},
//                     heed::with_grad(heed::fox{log_f}, {.log_f = d_log_f}));
//
// q, k, v, mask, scale and mechanisms as in the call of attend that made `out` [B, T, Hq, Dv] and
// its natural-log log-sum-exp `lse` [B, T, Hq]; dout [B, T, Hq, Dv] is the gradient of out. Any
// strides, float or double. options.lse is not looked at. Lists that prune, or that have mechanisms
// of place output, begin with one more forward sweep unless options.saved is what that call of
// attend has filled (SavedForward).
//
// Gradients overwrite what their views held, or are added to it (gradients::accumulate). The
// results are the same bits for any number of threads. Nothing of size T x S is stored: the
// workspace holds a few copies of a head's keys and values per thread (of PaTH about 24). A row
// that sees no key has gradients 0; a key that no row sees gets exactly 0, whatever it or other
// keys hold.
//
// Throws shape_error, before anything is written, when shapes or strides do not fit or a gradient
// shares memory with another tensor of the call; std::bad_alloc when there is no memory.
template <class Q, class K, class V, class O, class L, class G, class... Mechanisms>
void attend_grad(const tensor_view<Q, 4>& q, const tensor_view<K, 4>& k, const tensor_view<V, 4>& v,
                 const tensor_view<O, 4>& out, const tensor_view<L, 3>& lse,
                 const tensor_view<G, 4>& dout,
                 const std::type_identity_t<gradients<std::remove_const_t<Q>>>& grads,
                 const std::type_identity_t<attend_options<std::remove_const_t<Q>>>& options = {},
                 const Mechanisms&... mechanisms) {
  using T = std::remove_const_t<Q>;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "heed: attend_grad works on float and double");
  static_assert(
      std::is_same_v<std::remove_const_t<K>, T> && std::is_same_v<std::remove_const_t<V>, T> &&
          std::is_same_v<std::remove_const_t<O>, T> && std::is_same_v<std::remove_const_t<L>, T> &&
          std::is_same_v<std::remove_const_t<G>, T>,
      "heed: attend_grad: q, k, v, out, lse and dout must have one element type");
  kernel::attend_grad<T, kernel::default_arch>(call_inputs<T>{q, k, v},
                                               kernel::grad_inputs<T>{out, dout, lse}, grads,
                                               options, mechanisms...);
}

}  // namespace heed::inline HEED_ABI
