// New queries of some sequences against what a cache holds of them: the sweep with few rows.
#pragma once

#include <numeric>

#include "heed/kernel/cache_lanes.hpp"
#include "heed/kernel/sweep.hpp"
#include "heed/kernel/sweep_sizes.hpp"

namespace heed::inline HEED_ABI::kernel {

// Queries of one sequence: the newest `rows` tokens of the store, the first `above` of them only
// for what later rows read.
template <class T, class All>
struct new_queries {
  const token_store* store;
  index rows, above;
  tensor_view<const T, 4> q;  // [1, rows, Hq, D]
  tensor_view<T, 4> out;      // [1, rows - above, Hq, Dv]
  tensor_view<T, 3> lse;      // [1, rows - above, Hq] or no data
};

template <class T, class Arch, class Stored, class All>
class cache_attend {
  using lanes = cache_lanes<T, Arch, Stored, All>;
  using list_type = typename lanes::list_type;
  using plans_type = plan_set<T, Arch, list_type>;
  using source_type = typename lanes::source_type;
  using values_type = cached_values<T, Arch, Stored>;
  using unit_type = unit<T, Arch, list_type, source_type, values_type>;
  using block_type = row_block<T, Arch, list_type, source_type, values_type>;

  // One sequence while the call runs.
  struct station {
    const new_queries<T, All>& queries;
    list_type list;
    problem call;
    call_inputs<T> inputs;
    visibility visible;
    plan_context<T, Arch> context;
    plans_type plans;

    station(const new_queries<T, All>& n, const All& all, const problem& p, const mask& m,
            workspace& memory)
        : queries(n),
          list(lanes::bind(all, *n.store, p, n.store->length())),
          call(of_one(p, n)),
          inputs{n.q, {}, {}},
          visible{m, sequence_of(n)},
          context{call, visible.s, visible.m, inputs, memory, call.S, call.S},
          plans(list, context) {}

    static problem of_one(problem p, const new_queries<T, All>& n) noexcept {
      p.B = 1;
      p.T = n.rows;
      p.S = n.store->length();
      return p;
    }
    static sequence sequence_of(const new_queries<T, All>& n) noexcept {
      sequence s;
      s.T = n.rows;
      s.S = s.key_end = n.store->length();
      s.position = s.S - s.T;
      s.before = n.store->before();
      return s;
    }
  };
  // The heads of one sequence that share keys or mix.
  struct part {
    source_type source;
    unit_type u;
    index task_end;  // tasks up to and with this part
    index row_blocks, panels, panel_heads;
  };

 public:
  cache_attend(const All& all, const problem& p, const mask& m, const tuning& wish,
               executor_ref executor, workspace& memory)
      : all_(all),
        problem_(p),
        mask_(m),
        wish_(wish),
        executor_(executor),
        memory_(memory),
        mixed_(list_type(all).heads_mixed),
        unit_heads_(std::lcm(mixed_, p.group())) {}

  void run(const new_queries<T, All>* queries, index count) {
    memory_.prepare_workers(executor_.workers());
    const index units = problem_.Hq / unit_heads_;
    auto* stations = memory_.take<station>(count);
    auto* parts = memory_.take<part>(count * units);
    index tasks = 0;
    for (index n = 0; n < count; ++n) {
      station& s = *std::construct_at(stations + n, queries[n], all_, problem_, mask_, memory_);
      source_type::refresh(s.list.scores, *s.queries.store, s.call, s.call.S, memory_);
      for (index u = 0; u < units; ++u) {
        part& to = parts[n * units + u];
        make_part(s, u * unit_heads_, to);
        to.task_end = tasks += to.row_blocks * to.panels;
      }
    }
    prepare(parts, count * units);
    executor_.parallel_for(tasks, [&](index task, index worker) {
      const part* at = parts;
      while (task >= at->task_end) ++at;
      run_block(*at, at->task_end - 1 - task, memory_.worker(worker));
    });
    memory_.level_workers();
  }

 private:
  // Where every head has so few rows, the heads that share keys go down the pipeline together:
  // the cache is read once.
  bool few(const station& s) const noexcept { return s.queries.rows * problem_.group() <= 32; }

  // Long panels for few rows: what is done once a panel costs time in which memory idles.
  block_sizes sizes_for(const station& s) const {
    block_sizes sizes = choose_sizes<T>(s.list, s.call, wish_);
    if (few(s) && wish_.panel == 0) sizes.panel = 8 * cache_chunk;
    return sizes;
  }

  void prepare(part* parts, index count) {
    index tasks = 0;
    for (index n = 0; n < count; ++n) tasks += parts[n].source.tasks();
    executor_.parallel_for(tasks, [&](index task, index worker) {
      const part* at = parts;
      for (; task >= at->source.tasks(); ++at) task -= at->source.tasks();
      at->source.prepare(task, memory_.worker(worker));
    });
  }
  void make_part(station& s, index head, part& to) {
    const index group = problem_.group(), panel_heads = few(s) ? unit_heads_ : mixed_;
    std::construct_at(&to.source,
                      cached_source_context<T, Arch, Stored, typename list_type::scores_type>{
                          s.context, s.list.scores, lanes::keys_of(*s.queries.store, problem_),
                          *s.queries.store, head / group, unit_heads_ / group});
    to.source.take(memory_);
    std::construct_at(
        &to.u, unit_type{s.list, s.plans, s.visible, to.source,
                         lanes::values_of(*s.queries.store, problem_, head / group), head,
                         unit_heads_, s.queries.out, s.queries.lse, sizes_for(s), s.queries.above});
    const index rows = s.queries.rows - s.queries.above;
    to.row_blocks = (rows + to.u.sizes.rows - 1) / to.u.sizes.rows;
    to.panels = unit_heads_ / panel_heads;
    to.panel_heads = panel_heads;
  }
  // Block `number` of a part: the last rows, which see most, come first when number counts down.
  static void run_block(const part& at, index number, workspace& scratch) {
    const index block = number / at.panels, head = at.u.head + number % at.panels * at.panel_heads;
    const index begin = at.u.first_out + block * at.u.sizes.rows;
    const index end = (std::min)(at.u.visible.s.T, begin + at.u.sizes.rows);
    const workspace::scope block_scope(scratch);
    block_type(at.u, head, at.panel_heads, begin, end, scratch).run();
  }

  const All& all_;
  const problem& problem_;
  const mask& mask_;
  tuning wish_;
  executor_ref executor_;
  workspace& memory_;
  index mixed_, unit_heads_;
};

}  // namespace heed::inline HEED_ABI::kernel
