// attend: attention, forward, for any list of mechanisms.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "heed/checks.hpp"
#include "heed/kernel/sweep.hpp"
#include "heed/kernel/sweep_sizes.hpp"

namespace heed::inline HEED_ABI {

namespace kernel {

// One call: sequences one after the other, heads in units that share keys, row blocks as tasks.
template <class T, class Arch, class All>
class forward_call {
  using list_type = stage_list<All>;
  using plans_type = plan_set<T, Arch, list_type>;
  using loader_type = typename loader_of<T, Arch, typename list_type::inputs_type>::type;
  using source_type = decltype(std::declval<const typename list_type::scores_type&>().source(
      std::declval<const source_context<T, Arch>&>(), std::declval<const loader_type&>()));
  using unit_type = unit<T, Arch, list_type, source_type>;

  // Everything that belongs to one unit while its wave runs.
  struct station {
    unit_type u;
    index task_end;  // tasks of this wave up to and with this unit
    index row_blocks, panels;
  };

 public:
  forward_call(const All& all, const problem& p, const call_inputs<T>& inputs,
               const tensor_view<T, 4>& out, const attend_options<T>& options, workspace& memory,
               const saved_view<T>& saved = {})
      : list_(all),
        problem_(p),
        inputs_(inputs),
        out_(out),
        options_(options),
        memory_(memory),
        saved_(saved),
        panel_heads_(list_.heads_mixed),
        unit_heads_(std::lcm(list_.heads_mixed, std::max<index>(1, p.group()))),
        workers_(std::max<index>(1, options.executor.workers())),
        sizes_(choose_sizes<T>(list_, p, options.tuning)) {}

  // Throws shape_error for a list that cannot be run.
  static void check(const All& all) {
    check_pruning<list_type, typename source_type::rows_type>(list_type(all));
  }

  // Sequences whose units fit one wave together share what their plans hold; a longer one goes
  // alone, a few units at a time.
  void run() {
    memory_.prepare_workers(workers_);
    const index per_sequence = problem_.Hq / unit_heads_;
    const index sequences = sequence_count(problem_, options_.mask);
    for (index first = 0, end = 0; first < sequences; first = end) {
      std::size_t bytes = 0;
      const auto bytes_of = [&](index n) {
        return static_cast<std::size_t>(per_sequence) * unit_bytes(n);
      };
      do {
        bytes += bytes_of(end++);
      } while (end < sequences &&
               fits_wave((end + 1 - first) * per_sequence, bytes + bytes_of(end)));
      const workspace::scope scope(memory_);
      const wave_sequences<T, Arch, list_type> wave(list_, problem_, options_.mask, inputs_, first,
                                                    end - first, memory_);
      for (index unit = first * per_sequence; unit < end * per_sequence;) {
        const workspace::scope units(memory_);
        unit = run_wave(wave, first, unit, end * per_sequence);
      }
    }
    memory_.level_workers();
  }

 private:
  // Whether a wave of so many units, whose packed keys and values take so many bytes, is small
  // enough: what a worker packs shall still be in its cache when it is read, but every worker shall
  // have work, and short sequences shall not mean a wave each. One unit always runs.
  bool fits_wave(index units, std::size_t bytes) const noexcept {
    const auto workers = static_cast<std::size_t>(workers_);
    constexpr std::size_t megabyte = std::size_t{1} << 20;
    if (bytes > (std::min)(2 * workers, std::size_t{64}) * megabyte) return false;
    return bytes <= workers * megabyte / 2 || static_cast<std::size_t>(units) <= workers;
  }

  // Runs as many units from `first` on as fit the memory of a wave; returns the unit after them.
  index run_wave(const wave_sequences<T, Arch, list_type>& wave, index first_sequence, index first,
                 index units) {
    const index per_sequence = problem_.Hq / unit_heads_;
    index end = first;
    std::size_t bytes = 0;
    do {
      bytes += unit_bytes(end++ / per_sequence);
    } while (end < units && fits_wave(end + 1 - first, bytes + unit_bytes(end / per_sequence)));

    visibility* const visible = wave.visible;
    plans_type* const plans = wave.plans;
    loader_type* const loaders = wave.loaders;
    auto* sources = memory_.take<source_type>(end - first);
    auto* stations = memory_.take<station>(end - first);
    index tasks = 0;
    for (index n = first; n < end; ++n) {
      const index at = n / per_sequence - first_sequence;
      const index head = n % per_sequence * unit_heads_;
      const sequence& s = visible[at].s;
      const index row_blocks = (s.T + sizes_.rows - 1) / sizes_.rows;
      const index panels = unit_heads_ / panel_heads_;
      source_type& source = *std::construct_at(
          sources + (n - first),
          list_.scores.source(
              source_context<T, Arch>{plans[at].context, head / problem_.group(), kv_heads(),
                                      row_blocks * panels <= 1, wants_norms(list_)},
              loaders[at]));
      source.take(memory_);
      tasks += row_blocks * panels;
      std::construct_at(
          stations + (n - first),
          station{unit_type{list_, plans[at], visible[at], source, take_values(s, head), head,
                            unit_heads_, out_, options_.lse, sizes_, 0, saved_},
                  tasks, row_blocks, panels});
    }
    if (workers_ == 1 && !wants_norms(list_)) {
      options_.executor.parallel_for(end - first, [&](index unit, index worker) {
        run_in_turn(stations[unit], memory_.worker(worker));
      });
      return end;
    }
    prepare(stations, end - first);
    const auto work = [&](index task, index worker) {
      const station* at = stations;
      while (task >= at->task_end) ++at;
      run_block(*at, at->task_end - 1 - task, memory_.worker(worker));
    };
    options_.executor.parallel_for(tasks, work);
    return end;
  }
  // One worker prepares keys and values shortly before the first rows that need them.
  void run_in_turn(const station& at, workspace& scratch) const {
    const source_type& source = at.u.source;
    const visibility& visible = at.u.visible;
    const index heads = kv_heads(), tasks = source.tasks() / heads;
    index prepared = 0, packed = 0, needed = 0;
    for (index row = 0, block = 0; block < at.row_blocks; ++block) {
      for (; row < (std::min)(visible.s.T, (block + 1) * sizes_.rows); ++row) {
        const index own = (std::min)(row + visible.s.position + 1, visible.s.S);
        needed = (std::max)({needed, own, visible.bounds(row).hi});
      }
      for (; prepared < tasks && source.keys_begin(prepared) < needed; ++prepared) {
        for (index head = 0; head < heads; ++head) source.prepare(head * tasks + prepared, scratch);
      }
      if (packed < needed) {
        for (index kv = 0; kv < value_tasks(visible.s); ++kv) {
          pack_values(at.u, kv, packed, needed);
        }
        packed = needed;
      }
      for (index part = 0; part < at.panels; ++part) {
        run_block(at, block * at.panels + part, scratch);
      }
    }
  }

  index kv_heads() const noexcept { return unit_heads_ / std::max<index>(1, problem_.group()); }
  std::size_t unit_bytes(index n) const {
    const sequence s = sequence_at(problem_, options_.mask, n);
    const index values = values_as_they_are(s) ? 0 : kv_heads() * s.S * value_row();
    return source_type::bytes(list_.scores, problem_, s, kv_heads()) +
           static_cast<std::size_t>(values) * sizeof(T);
  }

  // Block `number` of a unit: where many workers share the blocks, number counts down, so that the
  // last rows, which see most, come first.
  void run_block(const station& at, index number, workspace& scratch) const {
    const index block = number / at.panels, part = number % at.panels;
    const index begin = block * sizes_.rows;
    const index end = (std::min)(at.u.visible.s.T, begin + sizes_.rows);
    const workspace::scope block_scope(scratch);
    row_block<T, Arch, list_type, source_type>(at.u, at.u.head + part * panel_heads_, panel_heads_,
                                               begin, end, scratch)
        .run();
  }

  // Values are read where they lie when their rows are whole vectors and either follow one another
  // in memory, on vector boundaries, or are read only once. Rows that lie far apart, such as those
  // of one head among many, fall into a few sets of the caches and on a page each.
  bool values_as_they_are(const sequence& s) const noexcept {
    if (inputs_.v.stride(3) != 1 || problem_.Dv % width<T, Arch> != 0) return false;
    return s.T <= sizes_.rows || (inputs_.v.stride(1) == problem_.Dv && values_are_aligned());
  }
  // A vector that straddles two cache lines is loaded twice.
  bool values_are_aligned() const noexcept {
    constexpr std::size_t vector_bytes = sizeof(T) * static_cast<std::size_t>(width<T, Arch>);
    return reinterpret_cast<std::uintptr_t>(inputs_.v.data()) % vector_bytes == 0 &&
           inputs_.v.stride(0) % width<T, Arch> == 0 && inputs_.v.stride(2) % width<T, Arch> == 0;
  }
  index value_row() const noexcept {
    return (problem_.Dv + width<T, Arch> - 1) / width<T, Arch> * width<T, Arch>;
  }
  value_rows<T> take_values(const sequence& s, index head) const {
    if (problem_.Dv == 0) return {};
    if (values_as_they_are(s)) {
      return {inputs_.v.pointer(s.batch, s.first_key, head / problem_.group(), index{0}),
              inputs_.v.stride(2), inputs_.v.stride(1)};
    }
    return {memory_.take<T>(kv_heads() * s.S * value_row()), s.S * value_row(), value_row()};
  }

  // Packs keys, and values where they need it, in parallel.
  void prepare(const station* stations, index count) {
    const auto tasks_of = [&](const station& at) {
      return at.u.source.tasks() + value_tasks(at.u.visible.s);
    };
    index tasks = 0;
    for (index n = 0; n < count; ++n) tasks += tasks_of(stations[n]);
    const auto work = [&](index task, index worker) {
      const station* at = stations;
      for (; task >= tasks_of(*at); ++at) task -= tasks_of(*at);
      if (task < at->u.source.tasks()) {
        at->u.source.prepare(task, memory_.worker(worker));
      } else {
        pack_values(at->u, task - at->u.source.tasks(), 0, at->u.visible.s.S);
      }
    };
    options_.executor.parallel_for(tasks, work);
    if constexpr (requires(const source_type& s) { s.seal(); }) {
      for (index n = 0; n < count; ++n) stations[n].u.source.seal();
    }
  }
  index value_tasks(const sequence& s) const noexcept {
    return values_as_they_are(s) || problem_.Dv == 0 ? 0 : kv_heads();
  }
  // Those of keys [from, to).
  void pack_values(const unit_type& u, index kv, index from, index to) const {
    const sequence& s = u.visible.s;
    copy_rows<Arch>(
        inputs_.v.pointer(s.batch, s.first_key + from, u.head / problem_.group() + kv, index{0}),
        inputs_.v.stride(1), inputs_.v.stride(3), to - from, problem_.Dv,
        const_cast<T*>(u.values.at(kv, from)), u.values.row_stride);
  }

  list_type list_;
  const problem& problem_;
  const call_inputs<T>& inputs_;
  const tensor_view<T, 4>& out_;
  const attend_options<T>& options_;
  workspace& memory_;
  saved_view<T> saved_;
  index panel_heads_, unit_heads_, workers_;
  block_sizes sizes_;
};

template <class T, class Arch, class... Mechanisms>
void attend(const call_inputs<T>& in, const tensor_view<T, 4>& out,
            const attend_options<T>& options, const Mechanisms&... mechanisms) {
  const problem p = make_problem(in.q, in.k, in.v, out, options);
  const auto all = without_grads(std::tuple_cat(expand(mechanisms)...));
  std::apply([]<class... Stages>(
                 const Stages&...) { static_assert((check_stage<Stages, T, Arch>() && ...)); },
             all);
  for_each(all, [&](const auto& stage) { check_mechanism(stage, p, options.mask); });
  using call_type = forward_call<T, Arch, std::remove_const_t<decltype(all)>>;
  call_type::check(all);
  saved_view<T> saved;
  if (options.saved != nullptr) {
    saved = options.saved->prepare(p, options.tuning, saves_rows(all), saves_panels(all));
  }
  if (p.B == 0 || p.T == 0 || p.Hq == 0) return;
  workspace own;
  workspace& memory = options.workspace != nullptr ? *options.workspace : own;
  memory.reset();
  call_type(all, p, in, out, options, memory, saved).run();
}

}  // namespace kernel

// Attention, forward:  out_i = sum_j P_ij v_j,  P = softmax over visible j of scale q_i.k_j, with
// what the listed mechanisms make of it.
//
//   q [B, T, Hq, D], k [B, S, Hkv, D], v [B, S, Hkv, Dv], out [B, T, Hq, Dv]
//
// in float or double, with any strides. Hq must be a multiple of Hkv: query head h reads key/value
// head h / (Hq / Hkv). B, T, S, Dv may be 0. A row that sees no key gives output 0 and log-sum-exp
// -inf. A key that a row does not see never reaches that row, whatever it holds.
//
// Mechanisms apply by place (inputs, scores, logits, probabilities, output) and, within a place, in
// the order listed.
//
// Throws shape_error, before anything is written, when shapes, strides or the mask do not fit;
// std::bad_alloc when there is no memory.
template <class Q, class K, class V, class T, class... Mechanisms>
void attend(const tensor_view<Q, 4>& q, const tensor_view<K, 4>& k, const tensor_view<V, 4>& v,
            const tensor_view<T, 4>& out,
            const std::type_identity_t<attend_options<T>>& options = {},
            const Mechanisms&... mechanisms) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "heed: attend works on float and double; out must not be const");
  static_assert(std::is_same_v<std::remove_const_t<Q>, T> &&
                    std::is_same_v<std::remove_const_t<K>, T> &&
                    std::is_same_v<std::remove_const_t<V>, T>,
                "heed: attend: q, k, v and out must have one element type");
  kernel::attend<T, kernel::default_arch>(call_inputs<T>{q, k, v}, out, options, mechanisms...);
}

}  // namespace heed::inline HEED_ABI
