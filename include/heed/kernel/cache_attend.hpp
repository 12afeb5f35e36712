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

// A row block that sweeps a range of the keys and leaves what it has found to be joined.
template <class T, class Block>
class split_block : public Block {
 public:
  using Block::Block;

  // Of every row: log-sum-exp = max + log(sum); out relative to max, not normalised.
  struct record {
    T* max;
    double* sum;
    T* out;  // [rows][Dv]

    static record take(index rows, index Dv, workspace& memory) {
      return {memory.take<T>(rows), memory.take<double>(rows), memory.take<T>(rows * Dv)};
    }
  };

  void find(const record& to) {
    this->sweep_all();
    each_row([&](index n, index at) {
      to.max[n] = this->max_[at] + this->shift_[at];
      to.sum[n] = 0;
      for (index l = 0; l < Block::W; ++l) {
        to.sum[n] += static_cast<double>(this->sum_[at * Block::W + l]);
      }
      for (index d = 0; d < this->Dv(); ++d) {
        to.out[n * this->Dv() + d] = this->out_[at * this->ldo_ + d];
      }
    });
  }
  void join(const record* from, index count) {
    this->reset_rows(0, this->count_);
    each_row([&](index n, index at) {
      T top = -std::numeric_limits<T>::infinity();
      for (index k = 0; k < count; ++k) {
        if (!(from[k].max[n] <= top)) top = from[k].max[n];  // NaN stays
      }
      this->max_[at] = top;
      this->shift_[at] = 0;
      T* out = this->out_ + at * this->ldo_;
      double sum = 0;
      for (index k = 0; k < count; ++k) {
        if (from[k].max[n] == -std::numeric_limits<T>::infinity()) continue;
        const double share =
            std::exp(static_cast<double>(from[k].max[n]) - static_cast<double>(top));
        sum += share * from[k].sum[n];
        for (index d = 0; d < this->Dv(); ++d) {
          out[d] += static_cast<T>(share) * from[k].out[n * this->Dv() + d];
        }
      }
      this->sum_[at * Block::W] = static_cast<T>(sum);
    });
    this->finish();
  }

 private:
  template <class F>
  void each_row(const F& f) const {
    index n = 0;
    for (index g = 0; g < this->heads_; ++g) {
      for (index r = this->first_row(0); r < this->count_; ++r) f(n++, g * this->count_ + r);
    }
  }
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
          context{{call, visible.s, inputs, memory}, visible.m, call.S, call.S},
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
  // The heads of one sequence that share keys or mix. Few rows of a long context are split over the
  // keys: there is a unit for each range, and a record of what it found.
  struct part {
    source_type source;
    unit_type* units;  // [ranges]
    index task_end;    // tasks up to and with this part
    index row_blocks, panels, panel_heads, ranges;
    typename split_block<T, block_type>::record* records;  // [panels][ranges]
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
    const workspace::scope call(memory_);
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
        to.task_end = tasks += to.row_blocks * to.panels * to.ranges;
      }
    }
    prepare(parts, count * units);
    executor_.parallel_for(tasks, [&](index task, index worker) {
      const part* at = parts;
      while (task >= at->task_end) ++at;
      run_block(*at, at->task_end - 1 - task, memory_.worker(worker));
    });
    for (index n = 0; n < count * units; ++n) {
      for (index p = 0; parts[n].ranges > 1 && p < parts[n].panels; ++p) join(parts[n], p);
    }
    memory_.level_workers();
  }

 private:
  // Where every head has so few rows, the heads that share keys go down the pipeline together:
  // the cache is read once.
  bool few(const station& s) const noexcept { return s.queries.rows * problem_.group() <= 32; }

  // Long panels for few rows: what is done once a panel costs time in which memory idles.
  block_sizes sizes_for(const station& s) const {
    block_sizes sizes = choose_sizes<T>(s.list, s.call, wish_);
    sizes.keys = s.queries.store->capacity();  // so that steps within it allocate nothing
    if (few(s) && wish_.panel == 0) {
      const index lines = s.queries.rows * unit_heads_;
      sizes.panel = (std::clamp)(32 / lines, index{4}, index{32}) * cache_chunk;
    }
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
    const index rows = s.queries.rows - s.queries.above;
    const block_sizes sizes = sizes_for(s);
    to.row_blocks = (rows + sizes.rows - 1) / sizes.rows;
    to.panels = unit_heads_ / panel_heads;
    to.panel_heads = panel_heads;
    to.ranges = to.row_blocks == 1 ? ranges_of(s) : 1;
    to.units = memory_.take<unit_type>(to.ranges);
    const values_type values = lanes::values_of(*s.queries.store, problem_, head / group);
    for (index n = 0; n < to.ranges; ++n) {
      std::construct_at(to.units + n, unit_type{s.list, s.plans, visible_in(s, n, to.ranges),
                                                to.source, values, head, unit_heads_, s.queries.out,
                                                s.queries.lse, sizes, s.queries.above});
    }
    if (to.ranges == 1) return;
    using record = typename split_block<T, block_type>::record;
    to.records = memory_.take<record>(to.panels * to.ranges);
    for (index n = 0; n < to.panels * to.ranges; ++n) {
      to.records[n] = record::take(panel_heads * rows, problem_.Dv, memory_);
    }
  }
  // The keys of a sequence are cut where its length alone says, so that results are the same bits
  // on any number of threads and beside any other sequences.
  index ranges_of(const station& s) const {
    if (!few(s) || s.list.prune.tolerance > 0) return 1;
    bool splits = true;
    for_each(all_, [&](const auto& stage) {
      splits =
          splits && (std::remove_cvref_t<decltype(stage)>::where == place::output || joins(stage));
    });
    return splits ? (std::max)(index{1}, s.call.S / source_type::range) : 1;
  }
  const visibility& visible_in(const station& s, index n, index ranges) {
    if (ranges == 1) return s.visible;
    visibility& v = *std::construct_at(memory_.take<visibility>(1), s.visible);
    v.s.key_begin = n * source_type::range;
    v.s.key_end = n + 1 < ranges ? v.s.key_begin + source_type::range : s.call.S;
    return v;
  }

  // Task `number` of a part: the last rows, which see most, come first when number counts down.
  static void run_block(const part& at, index number, workspace& scratch) {
    const index range = number % at.ranges;
    number /= at.ranges;
    const index block = number / at.panels, panel = number % at.panels;
    const unit_type& u = at.units[range];
    const index begin = u.first_out + block * u.sizes.rows;
    const index end = (std::min)(u.visible.s.T, begin + u.sizes.rows);
    const index head = u.head + panel * at.panel_heads;
    const workspace::scope block_scope(scratch);
    if (at.ranges == 1) {
      block_type(u, head, at.panel_heads, begin, end, scratch).run();
    } else {
      split_block<T, block_type>(u, head, at.panel_heads, begin, end, scratch)
          .find(at.records[panel * at.ranges + range]);
    }
  }
  void join(const part& at, index panel) const {
    const unit_type& u = at.units[0];
    const workspace::scope block_scope(memory_);
    split_block<T, block_type>(u, u.head + panel * at.panel_heads, at.panel_heads, u.first_out,
                               u.visible.s.T, memory_)
        .join(at.records + panel * at.ranges, at.ranges);
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
