// The plain dot product as a source of scores, and with it the contract of place scores.
//
// A stage of place scores replaces it. It offers source(source_context, loader) -> Source:
//
//   Source, one per sequence and run of key/value heads:
//     static bytes(stage, problem, sequence, kv_heads)   about how much memory it will take
//     take(workspace&)                 takes it
//     tasks(), prepare(task, scratch)  packs or transforms the keys; tasks may run in parallel.
//     They
//                                      are as many for each head, one head after the other, and
//     keys_begin(n)                    task n of a head prepares its keys from here on
//     seal()                           optional: once, when all tasks are done
//     rows(rows_context, T* queries)   for one row block; queries [heads][count][D], scaled
//   its Rows:
//     panel_begin(newest, panel)       where the panel that ends at `newest` begins
//     enter(key_begin, key_end)        once per panel
//     scores(panel, g, bias)           writes q.k for rows [begin, end) and columns [first, last)
//                                      of head g, plus bias[c - first] unless bias is null
//     advance(key_begin, key_end)      the sweep leaves these columns
//     key_norm(g, key_begin, key_end)  optional, for pruning (context.norms): N such that every
//                                      |score| of head g and visible keys [key_begin, key_end) is
//                                      at most N times the norm of the row's `queries`
#pragma once

#include <cmath>

#include "heed/kernel/pack.hpp"
#include "heed/kernel/pipeline.hpp"
#include "heed/kernel/tile.hpp"

namespace heed::inline HEED_ABI::kernel {

// Copies keys of one head into rows [n][ld] and lets the input stages transform them.
template <class T, class Arch, class... Stages>
struct key_loader {
  const plan_context<T, Arch>& context;
  const std::tuple<Stages...>& stages;
  const std::tuple<plan_of<Stages, T, Arch>...>& plans;

  // Whether the caller's keys go through unchanged.
  static constexpr bool plain = (!has_hook<Stages>(hook::keys) && ...);

  const T* raw(index kv_head, index key) const noexcept {
    const sequence& s = context.sequence;
    return context.inputs.k.pointer(s.batch, s.first_key + key, kv_head, index{0});
  }
  void load(index kv_head, index from, index to, T* rows, index ld) const {
    const auto& k = context.inputs.k;
    copy_rows<Arch>(raw(kv_head, from), k.stride(1), k.stride(3), to - from, context.problem.D,
                    rows, ld);
    for_each_pair(stages, plans, [&](const auto& stage, const auto& plan) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::keys)) {
        if (is_active(stage)) plan.keys(kv_head, from, to, rows, ld);
      }
    });
  }
};

template <class T, class Arch>
struct source_context {
  const plan_context<T, Arch>& plan;
  index kv_head, kv_heads;  // key/value heads [kv_head, kv_head + kv_heads)
  bool once;                // every key panel will be asked for once only
  bool norms = false;       // key_norm will be asked for
};

template <class T, class Arch, class Loader>
class dot_source {
 public:
  static constexpr index strip = strip_width<T, Arch>;
  static constexpr index keys_per_task = 4 * strip;

  dot_source(const source_context<T, Arch>& context, const Loader& loader)
      : loader_(&loader),
        D_(context.plan.problem.D),
        S_(context.plan.sequence.S),
        kv_head_(context.kv_head),
        kv_heads_(context.kv_heads),
        group_(context.plan.problem.group()),
        key_begin_(context.plan.sequence.key_begin),
        key_end_(context.plan.sequence.key_end),
        lazy_(context.once && !context.norms),
        norms_wanted_(context.norms) {}

  static std::size_t bytes(const auto&, const problem& p, const sequence& s,
                           index kv_heads) noexcept {
    return static_cast<std::size_t>(kv_heads * packed_columns_size<Arch, T>(s.S, p.D)) * sizeof(T);
  }
  void take(workspace& memory) {
    if (!lazy_) packed_ = memory.take<T>(kv_heads_ * head_size());
    if (norms_wanted_) norms_ = memory.take<double>(2 * kv_heads_ * strips());
  }
  index tasks() const noexcept { return lazy_ ? 0 : kv_heads_ * tasks_per_head(); }
  index keys_begin(index n) const noexcept { return n * keys_per_task; }
  void prepare(index task, workspace& scratch) const {
    const index head = task / tasks_per_head();
    const index from = keys_begin(task % tasks_per_head());
    const index to = (std::min)(S_, from + keys_per_task);
    T* packed = packed_ + head * head_size() + from * D_;
    pack(head, from, to, packed, scratch);
    if (!norms_wanted_) return;
    for (index key = from; key < to; key += strip) {
      norms_[head * strips() + key / strip] = largest_norm(packed + (key - from) * D_, key);
    }
  }
  // The largest norm of each strip and all older ones.
  void seal() const {
    if (!norms_wanted_) return;
    for (index head = 0; head < kv_heads_; ++head) {
      const double* own = norms_ + head * strips();
      double largest = 0;
      for (index s = 0; s < strips(); ++s) {
        largest = (std::max)(largest, own[s]);
        norms_[(kv_heads_ + head) * strips() + s] = largest;
      }
    }
  }

  class rows_type {
   public:
    static index panel_begin(index newest, index panel) noexcept {
      return (newest - 1) / panel * panel;
    }
    void enter(index key_begin, index key_end) {
      if (!source_->lazy_) return;
      first_ = key_begin / strip * strip;
      for (index head = 0; head < kv_count_; ++head) {
        source_->pack(kv_first_ + head, first_, key_end, window_ + head * window_size_, *scratch_);
      }
    }
    void scores(const panel<T, Arch>& p, index g, const T* bias) const {
      const index kv = (p.head + g) / source_->group_ - source_->kv_head_;
      const index D = source_->D_;
      const T* keys = source_->lazy_ ? window_ + (kv - kv_first_) * window_size_
                                     : source_->packed_ + kv * source_->head_size();
      const T* queries = queries_ + (g * count_ + p.begin) * D;
      for (index c = p.first; c < p.last;) {
        const index key = p.key(c) - (source_->lazy_ ? first_ : 0);
        const index within = key % strip;
        const index n = (std::min)(strip - within, p.last - c);
        product<Arch>(queries, D, keys + (key - within) * D + within, strip, p.line(g, p.begin) + c,
                      p.row_stride, p.end - p.begin, n, D,
                      bias == nullptr ? start::zero : start::row_bias,
                      bias == nullptr ? nullptr : bias + (c - p.first));
        c += n;
      }
    }
    void advance(index, index) const noexcept {}
    // Of few keys exactly, up to whole strips; of more, of all older ones, too.
    double key_norm(index g, index begin, index end) const noexcept {
      if (begin >= end) return 0;
      const dot_source& s = *source_;
      const index kv = (head_ + g) / s.group_ - s.kv_head_;
      const index first = begin / strip, last = (end - 1) / strip;
      if (last - first >= 16) return s.norms_[(s.kv_heads_ + kv) * s.strips() + last];
      double largest = 0;
      for (index n = first; n <= last; ++n) {
        largest = (std::max)(largest, s.norms_[kv * s.strips() + n]);
      }
      return largest;
    }

   private:
    friend dot_source;
    const dot_source* source_ = nullptr;
    const T* queries_ = nullptr;
    index head_ = 0, count_ = 0;
    // Lazily packed keys of the panel at hand.
    index kv_first_ = 0, kv_count_ = 0, first_ = 0, window_size_ = 0;
    T* window_ = nullptr;
    workspace* scratch_ = nullptr;
  };

  rows_type rows(const rows_context<T, Arch>& context, T* queries) const {
    rows_type r;
    r.source_ = this;
    r.queries_ = queries;
    r.head_ = context.head;
    r.count_ = context.count;
    if (lazy_) {
      r.kv_first_ = context.head / group_ - kv_head_;
      r.kv_count_ = (context.head + context.heads - 1) / group_ - kv_head_ - r.kv_first_ + 1;
      r.window_size_ = packed_columns_size<Arch, T>(context.panel + 2 * strip, D_);
      r.window_ = context.memory.template take<T>(r.kv_count_ * r.window_size_);
      r.scratch_ = &context.memory;
    }
    return r;
  }

 private:
  index head_size() const noexcept { return packed_columns_size<Arch, T>(S_, D_); }
  index strips() const noexcept { return (S_ + strip - 1) / strip; }
  // An upper bound of the norms of the visible keys of a packed strip, infinite where one is not
  // finite. A sum of D squares is off by at most D eps, and by what squares below the range of
  // normal numbers lose.
  double largest_norm(const T* packed, index first_key) const {
    using v = vec<T, Arch>;
    constexpr index w = width<T, Arch>;
    double largest = 0;
    for (index c = 0; c < strip; c += w) {
      v sum(T(0));
      for (index d = 0; d < D_; ++d) {
        const v x = load_vec<Arch>(packed + d * strip + c);
        sum = multiply_add(x, x, sum);
      }
      T lanes[static_cast<std::size_t>(w)];
      store_vec<Arch>(lanes, sum);
      for (index l = 0; l < w; ++l) {
        const index key = first_key + c + l;
        if (key < key_begin_ || key >= key_end_) continue;
        const auto square = static_cast<double>(lanes[l]);
        if (!(square <= largest)) {
          largest = square > largest ? square : std::numeric_limits<double>::infinity();
        }
      }
    }
    const auto terms = static_cast<double>(D_);
    return std::sqrt(largest) *
               (1 + (terms + 8) * static_cast<double>(std::numeric_limits<T>::epsilon())) +
           std::sqrt(terms * static_cast<double>((std::numeric_limits<T>::min)()));
  }
  index tasks_per_head() const noexcept {
    return std::max<index>(1, (S_ + keys_per_task - 1) / keys_per_task);
  }
  void pack(index head, index from, index to, T* packed, workspace& scratch) const {
    if (from >= to) return;
    if constexpr (Loader::plain) {
      const auto& k = loader_->context.inputs.k;
      pack_columns<Arch>(loader_->raw(kv_head_ + head, from), k.stride(1), k.stride(3), to - from,
                         D_, packed);
    } else {
      const auto mark = scratch.mark();
      T* rows = scratch.take<T>((to - from) * D_);
      loader_->load(kv_head_ + head, from, to, rows, D_);
      pack_columns<Arch>(rows, D_, index{1}, to - from, D_, packed);
      scratch.rewind(mark);
    }
  }

  const Loader* loader_;
  index D_, S_, kv_head_, kv_heads_, group_, key_begin_, key_end_;
  bool lazy_, norms_wanted_;
  T* packed_ = nullptr;
  double* norms_ = nullptr;  // [kv_heads][strips]: of each strip; then the same with older ones
};

// The adjoint: reverse_dot.hpp.
template <class T, class Arch, class Loader>
class dot_gradient;

// Over a cache: cached_keys.hpp.
template <class T, class Arch, class Stored>
class cached_dot;

// What the sweep uses when no mechanism of place scores is listed.
struct dot {
  static constexpr place where = place::scores;
  static constexpr hook hooks = hook::none;
  template <class T, class Arch, class Stored>
  using cached_source = cached_dot<T, Arch, Stored>;

  template <class T, class Arch, class Loader>
  auto source(const source_context<T, Arch>& context, const Loader& loader) const {
    return dot_source<T, Arch, Loader>(context, loader);
  }
  template <class T, class Arch, class Loader>
  auto source_gradient(const auto&, const auto&, const source_context<T, Arch>& context,
                       const Loader& loader) const {
    return dot_gradient<T, Arch, Loader>(context, loader);
  }
};

}  // namespace heed::inline HEED_ABI::kernel
