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
// behind log f = -inf. Likewise backward: the gradient of a gate,
//
//   d log f_s = sum over rows i >= s and keys j < s of dL_ij,
//
// is summed row block by row block from the oldest key on, in double: what leaves is what came in.
// Lin et al., Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv 2503.02130;
// pruning: Lin et al., Adaptive Computation Pruning, arXiv 2504.06949.
#pragma once

#include <cmath>
#include <optional>
#include <span>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/gate_sums.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/kernel/reverse.hpp"
#include "heed/mechanisms/fox_gates.hpp"

namespace heed::inline HEED_ABI {

// Whether the decay stands beside the scaled logit, scale q.k + c_i - c_j (FoX), or within it,
// scale (q.k + c_i - c_j) (flash-linear-attention's PaTH).
enum class gate { outside_scale, inside_scale };

namespace kernel {

// The gradients of the gates that one gradient owner has found so far.
template <class T>
struct gate_gradients {
  tensor_view<T, 3> to;  // [B, S, Hq]
  index batch = 0, first_key = 0, S = 0;
  index head = 0, heads = 0;
  double factor = 1;
  double* sums = nullptr;  // [heads][S]; null: not wanted

  // d log f_s += factor times the sum of what the row blocks found
  void reduce() const {
    if (sums == nullptr) return;
    for (index g = 0; g < heads; ++g) {
      for (index j = 0; j < S; ++j) {
        to(batch, first_key + j, head + g) += static_cast<T>(factor * sums[g * S + j]);
      }
    }
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

  void begin_backward(const reverse_context<T, Arch>& c, const gate_gradients<T>& to) {
    gradients_ = to;
    if (to.sums == nullptr) return;
    row_sums_ = c.memory.template take<double>(heads_ * count_);
    column_sums_ = c.memory.template take<T>(heads_ * ld_);
    crossing_ = c.memory.template take<double>(heads_);
    for (index n = 0; n < heads_ * count_; ++n) row_sums_[n] = 0;
    for (index n = 0; n < heads_ * ld_; ++n) column_sums_[n] = 0;
    for (index g = 0; g < heads_; ++g) crossing_[g] = 0;
  }
  // forward: every gate between i and j gets dL_ij. Here the sums by row and by column; retreat
  // turns them into what crosses each gate.
  void backward(const reverse_panel<T, Arch>& p) const {
    if (gradients_.sums == nullptr) return;
    for (index g = 0; g < p.heads; ++g) {
      T* columns = column_sums_ + g * ld_;
      for (index r = p.begin; r < p.end; ++r) {
        row_sums_[g * count_ + r] +=
            static_cast<double>(add_line(p.line(g, r), columns, p.first, p.last));
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

  // advance: the gate of token s is crossed by what older columns give to rows from s on. So a
  // column adds itself behind its own gate, and the row of its token takes all that it gave.
  void retreat(index begin, index end) {
    if (gradients_.sums == nullptr) return;
    for (index g = 0; g < heads_; ++g) {
      T* columns = column_sums_ + g * ld_;
      for (index j = begin; j < end; ++j) {
        pass_gate(g, j);
        if (j - begin < ld_) {
          crossing_[g] += static_cast<double>(columns[j - begin]);
          columns[j - begin] = 0;
        }
        const index r = j - position_;
        if (r >= 0 && r < count_) crossing_[g] -= row_sums_[g * count_ + r];
      }
    }
    retreated_ = end;
  }
  // Gates between the newest column and rows that see only older ones: hidden keys.
  void end_backward(const head_rows<T>&) { retreat(retreated_, position_ + count_); }

  // forward and advance: everything that moves from panel to panel.
  template <class Visit>
  void carries(const Visit& visit) {
    visit(carry_, heads_ * count_);
    visit(shared_, heads_);
    visit(&edge_, index{1});
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

  // Adds line[first, last) to columns; returns its sum.
  static T add_line(const T* line, T* columns, index first, index last) noexcept {
    constexpr index w = width<T, Arch>;
    vec<T, Arch> sum(T(0));
    index c = first;
    for (; c + w <= last; c += w) {
      const vec<T, Arch> x = load_vec<Arch>(line + c);
      sum += x;
      store_vec<Arch>(columns + c, load_vec<Arch>(columns + c) + x);
    }
    T rest = 0;
    for (; c < last; ++c) {
      rest += line[c];
      columns[c] += line[c];
    }
    return sum_lanes(sum) + rest;
  }
  // Behind log f = -inf all weights are 0, so that nothing crosses that gate but rounding.
  void pass_gate(index g, index j) const noexcept {
    if (j < 0 || j >= sums_.S) return;
    if (sums_.gate(head_ + g, j) == -std::numeric_limits<double>::infinity()) crossing_[g] = 0;
    gradients_.sums[(head_ - gradients_.head + g) * sums_.S + j] += crossing_[g];
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

  // In the reverse sweep.
  gate_gradients<T> gradients_;
  double* row_sums_ = nullptr;  // [heads][count]: of dL, columns that were swept
  T* column_sums_ = nullptr;    // [heads][ld]: of dL in the panel at hand
  double* crossing_ = nullptr;  // [heads]: dL of columns behind, in rows ahead
  index retreated_ = 0;
};

template <class T, class Arch>
struct gate_plan {
  gate_sums<T, Arch> sums;

  auto rows(const rows_context<T, Arch>& c) const { return gate_rows<T, Arch>(sums, c); }
};

}  // namespace kernel

// The gradient of log_f [B, S, Hq].
template <class T>
struct fox_grad {
  tensor_view<T, 3> log_f = {};
};

template <class T>
struct fox {
  static constexpr place where = place::logits;
  static constexpr hook hooks =
      hook::check | hook::plan | hook::rows | hook::enter | hook::forward | hook::advance |
      hook::column_bias | hook::row_bias | hook::ceiling | hook::prunes | hook::adds |
      hook::carries | hook::gradients | hook::sums | hook::begin_backward | hook::backward |
      hook::retreat | hook::end_backward | hook::tokens | hook::keep;
  using gradient_type = fox_grad<T>;

  tensor_view<const T, 3> log_f;  // [B, S, Hq], log of the forget gate, <= 0; -inf allowed
  gate convention = gate::outside_scale;
  std::optional<pruning> prune = {};  // leave out keys whose decay makes them negligible
  std::byte* kept = nullptr;          // a cache's: what keep() has made of the chunks so far

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

  template <class Self, class F>
  static void tokens(Self& m, const problem& p, const F& f) {
    f("fox.log_f", m.log_f, shape<1>{p.Hq});
  }

  // Sums of gates over chunks, as far as these are full.
  std::size_t kept_bytes(const problem& p) const noexcept {
    return kernel::gate_sums<T, kernel::default_arch>::table_bytes(p.Hq);
  }
  template <class Arch>
  void keep(const keep_context<T, Arch>& c) const {
    using sums_type = kernel::gate_sums<T, Arch>;
    const sums_type sums{log_f, factor(c.problem), 0, 0, c.to, 0, 0, c.problem.Hq, kept, nullptr};
    for (index n = c.from / sums_type::chunk; n < c.to / sums_type::chunk; ++n) sums.fill_chunk(n);
  }

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
    sums.factor = factor(c.problem);
    sums.batch = c.sequence.batch;
    sums.first_key = c.sequence.first_key;
    sums.S = c.sequence.S;
    sums.heads = c.problem.Hq;
    sums.growth = c.memory.template take<double>(sums.heads);
    if (kept != nullptr) {
      sums.first_chunk = 0;
      sums.chunks = c.sequence.S / sums_type::chunk;
      sums.tables = kept;
    } else {
      sums.first_chunk = from / sums_type::chunk;
      sums.chunks = (newest + sums_type::chunk - 1) / sums_type::chunk - sums.first_chunk;
      sums.tables = c.memory.template take<std::byte>(
          sums.chunks * static_cast<index>(sums_type::table_bytes(sums.heads)));
      for (index n = 0; n < sums.chunks; ++n) sums.fill_chunk(sums.first_chunk + n);
    }
    if (prune || kept == nullptr) {
      sums.add_growth();
    } else {  // no bound, for the pruning of another mechanism
      for (index h = 0; h < sums.heads; ++h) {
        sums.growth[h] = std::numeric_limits<double>::infinity();
      }
    }
    return kernel::gate_plan<T, Arch>{sums};
  }

  template <class F>
  void gradients(const fox_grad<T>& d, const F& f) const {
    f("fox.log_f", d.log_f, log_f);
  }
  template <class Arch>
  auto sums(const fox_grad<T>& d, const owner_context<T, Arch>& c) const {
    if (d.log_f.data() == nullptr) return kernel::gate_gradients<T>{};
    const index S = c.sequence.S;
    kernel::gate_gradients<T> sums{d.log_f,
                                   c.sequence.batch,
                                   c.sequence.first_key,
                                   S,
                                   c.head,
                                   c.heads,
                                   factor(c.problem),
                                   c.memory.template take<double>(c.heads * S)};
    for (index n = 0; n < c.heads * S; ++n) sums.sums[n] = 0;
    return sums;
  }

 private:
  double factor(const problem& p) const { return convention == gate::inside_scale ? p.scale : 1; }
};
template <class T>
fox(tensor_view<T, 3>) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate, pruning) -> fox<std::remove_const_t<T>>;
template <class T>
fox(tensor_view<T, 3>, gate, std::optional<pruning>) -> fox<std::remove_const_t<T>>;
template <class T>
fox_grad(tensor_view<T, 3>) -> fox_grad<T>;

}  // namespace heed::inline HEED_ABI
