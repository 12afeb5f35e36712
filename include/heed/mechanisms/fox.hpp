// FoX: the Forgetting Transformer's forget gate.
//
//   L_ij <- L_ij + c_i - c_j,   c_i - c_j = sum over tokens s = j + 1 .. p_i of log f_s
//
// The sum takes the gate of the query's token and leaves out that of the key. Gates are indexed by
// key position: row i, at position p_i, belongs to token p_i of its sequence, and tokens outside
// [0, S) have no gate (log f = 0). Keys that a window, a padding or a view hides still stand
// between others: their gates count. log f = -inf forgets all that came before, cleanly. Defined
// for keys not newer than the query. Cost: nothing per score where the decay within a row block is
// mild, since it starts the sums of q.k; one addition elsewhere.
//
// No c is ever formed: c_i - c_j is a sum from the row leftwards, in double, carried from panel to
// panel. A difference of running sums would lose its digits after long or strong decay, and be NaN
// behind log f = -inf.
// Lin et al., Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv 2503.02130;
// pruning: Lin et al., Adaptive Computation Pruning, arXiv 2504.06949.
#pragma once

#include <cmath>
#include <optional>
#include <span>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/kernel/simd.hpp"
#include "heed/mechanisms/fox_gates.hpp"

namespace heed::inline HEED_ABI {

// Whether the decay stands beside the scaled logit, scale q.k + c_i - c_j (FoX), or within it,
// scale (q.k + c_i - c_j) (flash-linear-attention's PaTH).
enum class gate { outside_scale, inside_scale };

namespace kernel {

// The gates of one sequence, ready to be summed. Positions outside [0, S) have gate 0.
template <class T, class Arch>
struct gate_sums {
  static constexpr index chunk = 64;

  tensor_view<const T, 3> log_f;
  double factor;  // of every gate
  index batch, first_key, S;
  index first_chunk, chunks;  // what the tables below cover; older gates are read one by one
  T* within;                  // [Hq][chunks * chunk]: gates from (j, end of j's chunk)
  double* whole;              // [Hq][chunks]: all gates of a chunk
  double* growth;             // [Hq]: what positive gates add up to, all of them

  double gate(index h, index j) const noexcept {
    return j < 0 || j >= S ? 0 : factor * static_cast<double>(log_f(batch, first_key + j, h));
  }

  void fill(index heads) {
    double* sum = growth;  // runs from right to left in each chunk; becomes growth at the end
    for (index n = chunks - 1; n >= 0; --n) {
      for (index h = 0; h < heads; ++h) sum[h] = 0;
      for (index c = chunk - 1; c >= 0; --c) {
        for (index h = 0; h < heads; ++h) {
          within[(h * chunks + n) * chunk + c] = static_cast<T>(sum[h]);
          sum[h] += gate(h, (first_chunk + n) * chunk + c);
        }
      }
      for (index h = 0; h < heads; ++h) whole[h * chunks + n] = sum[h];
    }
    for (index h = 0; h < heads; ++h) growth[h] = 0;
    for (index j = first_chunk * chunk; j < (std::min)(S, (first_chunk + chunks) * chunk); ++j) {
      for (index h = 0; h < heads; ++h) {
        if (const double g = gate(h, j); g > 0) growth[h] += g;
      }
    }
  }

  // Adds `sum` plus the gates of (j, end) to to[j - begin], for j in [begin, end), unless `to` is
  // null. Returns `sum` plus the gates of [begin, end).
  double extend(index h, index begin, index end, double sum, T* to) const noexcept {
    for (index stop = end; stop > begin;) {
      const index n = (stop - 1 >= 0 ? (stop - 1) / chunk : (stop - chunk) / chunk);
      const index from = (std::max)(begin, n * chunk);
      const bool known =
          n >= first_chunk && n < first_chunk + chunks && (stop == (n + 1) * chunk || stop >= S);
      if (known && to != nullptr) {
        const T* table = within + (h * chunks - first_chunk) * chunk;
        add_shifted(table + from, static_cast<T>(sum), to + (from - begin), stop - from);
      }
      if (known && from == n * chunk) {
        sum += whole[h * chunks + n - first_chunk];
      } else {
        for (index j = stop - 1; j >= from; --j) {
          if (!known && to != nullptr) to[j - begin] += static_cast<T>(sum);
          sum += gate(h, j);
        }
      }
      stop = from;
    }
    return sum;
  }
  double between(index h, index begin, index end) const noexcept {
    return extend(h, begin, end, 0, nullptr);
  }

  // to[i] += from[i] + shift
  static void add_shifted(const T* from, T shift, T* to, index n) noexcept {
    constexpr index w = width<T, Arch>;
    index i = 0;
    for (; i + w <= n; i += w) {
      store_vec<Arch>(to + i,
                      load_vec<Arch>(to + i) + (load_vec<Arch>(from + i) + vec<T, Arch>(shift)));
    }
    for (; i < n; ++i) to[i] += from[i] + shift;
  }
};

// FoX on one row block. The carry of a row is the sum of the gates from the oldest column that the
// sweep has left to the row's own token, 0 while the sweep has not come to that token.
template <class T, class Arch>
class gate_rows {
 public:
  // Decay within a row block up to here may start the accumulators of q.k; more would cost the
  // logits digits.
  static constexpr double mild = 8;

  gate_rows(const gate_sums<T, Arch>& sums, const rows_context<T, Arch>& c)
      : sums_(sums),
        head_(c.head),
        heads_(c.heads),
        count_(c.count),
        position_(c.row + c.sequence.position),
        middle_(c.count / 2),
        edge_(c.newest),
        ld_(round_up(c.panel, width<T, Arch>)),
        carry_(c.memory.template take<double>(heads_ * count_)),
        shared_(c.memory.template take<double>(heads_)),
        row_term_(c.memory.template take<T>(heads_ * count_)),
        suffix_(c.memory.template take<T>(heads_ * ld_)),
        gates_(c.memory.template take<double>(heads_ * ld_)) {
    begin_at(edge_);
    measure_block();
  }

  void enter(index begin, index end) {
    begin_at(end);
    begin_ = begin;
    for (index g = 0; g < heads_; ++g) {
      for (index j = 0; j < end - begin; ++j) suffix_[g * ld_ + j] = 0;
      sums_.extend(head_ + g, begin, end, 0, suffix_ + g * ld_);
      if (position_ >= end) continue;  // every row is newer than the panel
      for (index j = begin; j < end; ++j) gates_[g * ld_ + j - begin] = sums_.gate(head_ + g, j);
    }
  }

  // L_ij <- L_ij + c_i - c_j
  void forward(const panel<T, Arch>& p) const {
    for (index g = 0; g < p.heads; ++g) {
      for (index r = p.begin; r < p.end; ++r) {
        T* line = p.line(g, r);
        const index own = position_ + r;
        if (own >= edge_ - 1) {
          gate_sums<T, Arch>::add_shifted(suffix_ + g * ld_ + p.first,
                                          static_cast<T>(carry_[g * count_ + r]), line + p.first,
                                          p.last - p.first);
          continue;
        }
        // The row's token is in the panel: from there to the left.
        double sum = 0;
        for (index c = own - begin_; c >= p.first; --c) {
          if (c < p.last) line[c] += static_cast<T>(sum);
          sum += gates_[g * ld_ + c];
        }
      }
    }
  }

  void advance(index begin, index end) {
    begin_at(end);
    for (index g = 0; g < heads_; ++g) {
      double* carry = carry_ + g * count_;
      const double all = sums_.between(head_ + g, begin, end);
      shared_[g] += all;
      const index newer = (std::clamp<index>)(end - position_, 0, count_);
      for (index r = newer; r < count_; ++r) carry[r] += all;
      const index older = (std::clamp<index>)(begin - position_, 0, count_);
      if (older == newer) continue;
      double sum = sums_.between(head_ + g, begin, position_ + older);
      for (index r = older; r < newer; ++r) {
        carry[r] = sum += sums_.gate(head_ + g, position_ + r);
      }
    }
    edge_ = begin;
  }

  // c_i - c_j is split at the middle row of the block, m: (c_m - c_j) + (c_i - c_m).
  void column_bias(index g, index begin, index end, T* sum) const {
    sums_.extend(head_ + g, begin, end, shared_[g], sum);
  }
  T row_bias(index g, index r) const { return row_term_[g * count_ + r]; }
  bool mergeable() const { return mergeable_; }

  // Keys of [.., end) are decayed by at least what lies between the row and `end`, but for positive
  // gates on the way. The sum of up to 2^22 gates is right to one part in 2^30.
  void ceiling(index g, index, index end, std::span<double> bounds) const {
    constexpr double margin = 0x1p-30;
    for (index r = 0; r < count_; ++r) {
      const double decay = end == edge_ ? carry_[g * count_ + r] : 0;
      bounds[static_cast<std::size_t>(r)] +=
          decay * (decay < 0 ? 1 - margin : 1 + margin) + sums_.growth[head_ + g] * (1 + margin);
    }
  }

 private:
  // Makes `end` the edge that the carries belong to, before the first column is left: a stage
  // before this one may let the columns lag.
  void begin_at(index end) {
    if (started_ && end == edge_) return;
    started_ = true;
    edge_ = end;
    for (index g = 0; g < heads_; ++g) {
      double* carry = carry_ + g * count_;
      for (index r = 0; r < count_; ++r) {
        const index own = position_ + r;
        carry[r] = own < end            ? 0
                   : r > 0 && own > end ? carry[r - 1] + sums_.gate(head_ + g, own)
                                        : sums_.between(head_ + g, end, own + 1);
      }
    }
  }
  void measure_block() {
    const index middle = position_ + middle_;
    for (index g = 0; g < heads_; ++g) {
      double size = 0, sum = 0;
      T* term = row_term_ + g * count_;
      for (index r = middle_; r < count_; ++r) {
        const double gate = r > middle_ ? sums_.gate(head_ + g, position_ + r) : 0;
        term[r] = static_cast<T>(sum += gate);
        size += std::abs(gate);
      }
      sum = 0;
      for (index r = middle_ - 1; r >= 0; --r) {
        const double gate = sums_.gate(head_ + g, position_ + r + 1);
        term[r] = static_cast<T>(sum -= gate);
        size += std::abs(gate);
      }
      mergeable_ = mergeable_ && size <= mild;
      shared_[g] = edge_ <= middle ? sums_.between(head_ + g, edge_, middle + 1)
                                   : -sums_.between(head_ + g, middle + 1, edge_);
    }
  }

  gate_sums<T, Arch> sums_;
  index head_, heads_, count_;
  index position_;  // of row 0
  index middle_;
  index edge_, begin_ = 0;  // where the sweep stands; oldest column of the panel at hand
  index ld_;
  double* carry_;   // [heads][count]
  double* shared_;  // [heads]: c_m - c_(edge - 1)
  T* row_term_;     // [heads][count]: c_i - c_m
  T* suffix_;       // [heads][ld]: gates of (j, edge) in the panel at hand
  double* gates_;   // [heads][ld]
  bool mergeable_ = true, started_ = false;
};

template <class T, class Arch>
struct gate_plan {
  gate_sums<T, Arch> sums;

  auto rows(const rows_context<T, Arch>& c) const { return gate_rows<T, Arch>(sums, c); }
};

}  // namespace kernel

template <class T>
struct fox {
  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::plan | hook::rows | hook::enter |
                                hook::forward | hook::advance | hook::column_bias | hook::row_bias |
                                hook::ceiling | hook::prunes;

  tensor_view<const T, 3> log_f;  // [B, S, Hq], log of the forget gate, <= 0; -inf allowed
  gate convention = gate::outside_scale;
  std::optional<pruning> prune = {};  // leave out keys whose decay makes them negligible

  // Throws shape_error unless log_f is [B, S, Hq] and the pruning bounds make sense.
  void check(const problem& p) const {
    check_extents("fox", "log_f", log_f, {{{"batch", p.B}, {"keys", p.S}, {"query heads", p.Hq}}});
    if (!prune) return;
    if (!(prune->tolerance >= 0 && prune->tolerance < 1)) {
      throw shape_error("heed: fox: prune.tolerance: is " + std::to_string(prune->tolerance) +
                        ", expected at least 0 and below 1");
    }
    if (!(prune->logit_bound >= 0)) {
      throw shape_error("heed: fox: prune.logit_bound: is " + std::to_string(prune->logit_bound) +
                        ", expected at least 0");
    }
  }
  // Throws shape_error for a mask that shows keys newer than the query.
  void check(const problem&, const mask& m) const { check_hides_newer_keys("fox", m); }

  pruning prunes() const { return prune.value_or(pruning{0, 0}); }

  template <class Arch>
  auto plan(const plan_context<T, Arch>& c) const {
    using sums_type = kernel::gate_sums<T, Arch>;
    // Gates that no visible path crosses are not worth adding up.
    const index oldest = c.mask.first_keys > 0 ? 0 : c.sequence.position - c.mask.left;
    const index newest = (std::clamp<index>)(c.sequence.position + c.sequence.T, 0, c.sequence.S);
    const index from = (std::clamp<index>)((std::max)(oldest, c.sequence.key_begin), 0, newest);
    sums_type sums;
    sums.log_f = log_f;
    sums.factor = convention == gate::inside_scale ? c.problem.scale : 1;
    sums.batch = c.sequence.batch;
    sums.first_key = c.sequence.first_key;
    sums.S = c.sequence.S;
    sums.first_chunk = from / sums_type::chunk;
    sums.chunks = (newest + sums_type::chunk - 1) / sums_type::chunk - sums.first_chunk;
    const index heads = c.problem.Hq;
    sums.within = c.memory.template take<T>(heads * sums.chunks * sums_type::chunk);
    sums.whole = c.memory.template take<double>(heads * sums.chunks);
    sums.growth = c.memory.template take<double>(heads);
    sums.fill(heads);
    return kernel::gate_plan<T, Arch>{sums};
  }
};
template <class T>
fox(tensor_view<T, 3>) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate, pruning) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate, std::optional<pruning>) -> fox<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
