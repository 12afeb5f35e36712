// Back from positions that count gates: the adjoint of positions.hpp, and the sums behind it.
//
// A gate raises the positions of its own key and of all older ones, so on the way from the oldest
// key to the newest its gradient is the sum of the positions' gradients so far.
#pragma once

#include "heed/kernel/pack.hpp"
#include "heed/kernel/positions.hpp"
#include "heed/kernel/reverse_dot.hpp"

namespace heed::inline HEED_ABI::kernel {

// What the way back of a row reads of the way there, in the columns that counted. `constant`
// columns before them have the table's last entry.
template <class T>
struct position_record {
  static constexpr bool wanted = true;

  T* slope;              // dz / dp: 0 where p is whole or the table has ended
  T* gate_slope;         // d gate / d logit
  T* above;              // p less its entry
  integer_of<T>* entry;  // floor p, at most the last entry
  index* constant;
  index limit;  // the last entry

  position_record from(index c) const noexcept {
    return {slope + c, gate_slope + c, above + c, entry + c, constant, limit};
  }
};

// Records of the rows of a strip, line by line.
template <class T, class Arch>
class position_records {
 public:
  void take(index lines, index columns, index limit, workspace& memory) {
    ld_ = round_up(columns, width<T, Arch>) + 5 * width<T, Arch>;
    limit_ = limit;
    reals_ = memory.take<T>(3 * lines * ld_);
    entries_ = memory.take<integer_of<T>>(lines * ld_);
    constant_ = memory.take<index>(lines);
  }
  position_record<T> line(index n) const noexcept {
    T* reals = reals_ + 3 * n * ld_;
    return {reals, reals + ld_, reals + 2 * ld_, entries_ + n * ld_, constant_ + n, limit_};
  }

 private:
  index ld_ = 0, limit_ = 0;
  T* reals_ = nullptr;
  integer_of<T>* entries_ = nullptr;
  index* constant_ = nullptr;
};

// Lane i becomes lane i - By, 0 where there is none.
template <int By, class T, class Arch>
HEED_INLINE vec<T, Arch> shift_up(const vec<T, Arch>& x) {
  constexpr index n = width<T, Arch>;
#if defined(HEED_HAS_SHUFFLE)
  return shuffle(
      vec<T, Arch>(T(0)), x,
      [](int i) constexpr { return i < By ? 0 : static_cast<int>(n) + i - By; });
#else
  T lanes[2 * n] = {};
  x.store_unaligned(lanes + n);
  return load_vec<Arch>(lanes + n - By);
#endif
}
// Lane i becomes the sum of lanes 0, 1, ..., i.
template <class T, class Arch>
HEED_INLINE vec<T, Arch> sum_from_below(vec<T, Arch> x) {
  const auto step = [&](auto by) HEED_INLINE_LAMBDA {
    if constexpr (by < width<T, Arch>) x += shift_up<by>(x);
  };
  step(std::integral_constant<int, 1>{});
  step(std::integral_constant<int, 2>{});
  step(std::integral_constant<int, 4>{});
  step(std::integral_constant<int, 8>{});
  return x;
}
template <class T, class Arch>
HEED_INLINE T last_lane(const vec<T, Arch>& x) {
  T lanes[width<T, Arch>];
  x.store_unaligned(lanes);
  return lanes[width<T, Arch> - 1];
}

// Sum of x[0, n).
template <class Arch, class T>
HEED_INLINE T sum_of(const T* x, index n) {
  constexpr index w = width<T, Arch>;
  vec<T, Arch> sum(T(0));
  index c = 0;
  for (; c + w <= n; c += w) sum += load_vec<Arch>(x + c);
  T rest = 0;
  for (; c < n; ++c) rest += x[c];
  return sum_lanes(sum) + rest;
}

// The gradients of the entries below and above `used` lanes.
template <class T, class Arch>
HEED_INLINE void add_to_pairs(const vec<T, Arch>& low, const vec<T, Arch>& high,
                              const integer_of<T>* entries, index used, T* pairs) {
  T low_part[width<T, Arch>], high_part[width<T, Arch>];
  low.store_unaligned(low_part);
  high.store_unaligned(high_part);
  for (index i = 0; i < used; ++i) {
    T* pair = pairs + 2 * entries[i];
    pair[0] += low_part[i];
    pair[1] += high_part[i];
  }
}

// The adjoint of add_positions on columns [0, n) of one row; dl is the gradient of what it put out.
// dx becomes the gradient of the gates' logits, 0 in the columns before those that counted; where
// dx is dl, it is added. `positions`, the sum of the older positions' gradients, moves on.
// pairs[2 e] and pairs[2 e + 1] take the gradients of entries e and e + 1 by the positions between
// them.
template <class T, class Arch>
HEED_INLINE void add_positions_backward(const T* dl, T* dx, index n, const position_record<T>& kept,
                                        T& positions, T* pairs) {
  using v = vec<T, Arch>;
  constexpr index w = width<T, Arch>;
  const index begin = *kept.constant;
  // x += z_limit
  if (begin > 0) pairs[2 * kept.limit] += sum_of<Arch>(dl, begin);
  if (dx != dl) {
    for (index c = 0; c < begin; ++c) dx[c] = T(0);
  }
  T sum = positions;
  // Where gates are nearly closed many columns in a row stand at one entry, and what they give it
  // stays in registers.
  index entry = -1;
  v low_sum(T(0)), high_sum(T(0));
  const auto give = [&]() HEED_INLINE_LAMBDA {
    if (entry < 0) return;
    pairs[2 * entry] += sum_lanes(low_sum);
    pairs[2 * entry + 1] += sum_lanes(high_sum);
    low_sum = high_sum = v(T(0));
  };
  for (index c = begin; c < n; c += w) {
    const auto counts = lane_numbers<Arch, T>() < v(static_cast<T>(n - c));
    const v d = xsimd::select(counts, load_vec<Arch>(dl + c), v(T(0)));
    // x += (1 - f) z_e + f z_{e+1},  f = p - e
    const v high = xsimd::select(counts, d * load_vec<Arch>(kept.above + c), v(T(0)));
    const index used = n - c < w ? n - c : w;
    if (const index first = kept.entry[c]; first == kept.entry[c + used - 1]) {  // they only fall
      if (first != entry) give();
      entry = first;
      low_sum += d - high;
      high_sum += high;
    } else {
      add_to_pairs<T, Arch>(d - high, high, kept.entry + c, used, pairs);
    }
    // p_j = sum over s >= j of gate_s:  dgate_s = sum over j <= s of dp_j
    const v upto = sum_from_below<T, Arch>(d * load_vec<Arch>(kept.slope + c)) + v(sum);
    sum = last_lane(upto);
    const v dgate = xsimd::select(counts, upto * load_vec<Arch>(kept.gate_slope + c), v(T(0)));
    store_vec<Arch>(dx + c, dx == dl ? d + dgate : dgate);
  }
  give();
  positions = sum;
}

template <class Arch, class T>
bool all_finite(const T* x, index ld, index rows, index cols) noexcept {
  T sum = 0;
  for (index r = 0; r < rows; ++r) {
    for (index c = 0; c < cols; ++c) sum += x[r * ld + c] * 0;
  }
  return sum == 0;
}

// Gradients of table entries, row by row, and from there of queries and the embedding.
template <class T, class Arch>
class table_gradient {
 public:
  // n entries of the embedding [1|Hq, D, .]; z = factor <q, e>. dtable: [1|heads][n][D] to be added
  // to, or no data.
  void take(const rows_context<T, Arch>& c, const tensor_view<const T, 3>& embedding, index n,
            T factor, const head_rows<T>& dtable, workspace& memory) {
    heads_ = c.heads;
    count_ = c.count;
    D_ = c.problem.D;
    n_ = n;
    dtable_ = dtable;
    memory_ = &memory;
    const index size = heads_ * count_ * 2 * n;
    pairs_ = memory.take<T>(size);
    for (index i = 0; i < size; ++i) pairs_[i] = T(0);
    queries_ = memory.take<T>(heads_ * count_ * D_);
    load_queries(c, factor, queries_);
    finite_ = all_finite<Arch>(queries_, D_, heads_ * count_, D_);
    const index tables = embedding.extent(0) == 1 ? 1 : heads_, ld = round_up(D_, width<T, Arch>);
    entries_ = {memory.take<T>(tables * n * ld), tables == 1 ? 0 : n * ld, ld};
    for (index g = 0; g < tables; ++g) {
      copy_rows<Arch>(embedding.pointer(embedding.extent(0) == 1 ? 0 : c.head + g, 0, 0),
                      embedding.stride(2), embedding.stride(1), n, D_, entries_.row(g, 0), ld,
                      factor);
    }
  }
  T* pairs(index g, index r) const noexcept { return pairs_ + (g * count_ + r) * 2 * n_; }

  // z_in = factor <q_i, e_n>:  dq_i += factor sum over n of dz_in e_n,
  //                            de_n += factor sum over i of dz_in q_i
  void finish(const head_rows<T>& dq) const {
    const workspace::scope taken(*memory_);
    T* dz = memory_->take<T>(count_ * n_);
    for (index g = 0; g < heads_; ++g) {
      for (index r = 0; r < count_; ++r) {
        const T* pair = pairs(g, r);
        T* line = dz + r * n_;
        line[0] = pair[0];
        for (index e = 1; e < n_; ++e) line[e] = pair[2 * e] + pair[2 * e - 1];
      }
      product<Arch>(dz, n_, entries_.row(g, 0), entries_.row_stride, dq.row(g, 0), dq.row_stride,
                    count_, D_, n_, start::add);
      if (dtable_.data == nullptr) continue;
      add_product_transposed<Arch>(!finite_, dz, n_, queries_ + g * count_ * D_, D_,
                                   dtable_.row(g, 0), dtable_.row_stride, n_, D_, count_);
    }
  }

  // The caller's queries times a factor, [heads][count][D].
  static void load_queries(const rows_context<T, Arch>& c, T factor, T* to) {
    const index D = c.problem.D;
    for (index g = 0; g < c.heads; ++g) {
      index step = 0;
      const T* q = c.query(g, 0, step);
      copy_rows<Arch>(q, c.inputs.q.stride(1), step, c.count, D, to + g * c.count * D, D, factor);
    }
  }

 private:
  index heads_ = 0, count_ = 0, D_ = 0, n_ = 0;
  T* pairs_ = nullptr;
  T* queries_ = nullptr;
  bool finite_ = true;  // the queries
  head_rows<T> entries_, dtable_;
  workspace* memory_ = nullptr;
};

// Gradients of the logits of gates that are not from the keys, a panel at a time, and from there of
// queries and the gates' keys.
template <class T, class Arch>
class gate_gradient {
 public:
  // x = <queries, u>, queries [heads][count][D] = factor q, u [B, S, Hkv, D]. dkeys: of u's heads
  // from kv_head on, to be added to, or no data.
  void take(const rows_context<T, Arch>& c, const tensor_view<const T, 4>& u, const T* queries,
            T factor, const head_rows<T>& dkeys, index kv_head, workspace& memory) {
    u_ = u;
    batch_ = c.sequence.batch;
    first_key_ = c.sequence.first_key;
    head_ = c.head;
    heads_ = c.heads;
    count_ = c.count;
    D_ = c.problem.D;
    group_ = c.problem.group();
    kv_head_ = kv_head;
    queries_ = queries;
    factor_ = factor;
    dkeys_ = dkeys;
    memory_ = &memory;
    finite_ = all_finite<Arch>(queries, D_, heads_ * count_, D_);
    ld_ = round_up(c.panel, width<T, Arch>) + 5 * width<T, Arch>;
    data_ = memory.take<T>(heads_ * count_ * ld_);
    for (index n = 0; n < heads_ * count_ * ld_; ++n) data_[n] = T(0);
    const index ldq = round_up(D_, width<T, Arch>);
    dqueries_ = {memory.take<T>(heads_ * count_ * ldq), count_ * ldq, ldq};
    for (index n = 0; n < heads_ * count_ * ldq; ++n) dqueries_.data[n] = T(0);
    forget();
  }
  T* line(index g, index r) const noexcept { return data_ + (g * count_ + r) * ld_; }
  // Columns from `first` on of the panel's rows may hold something by now.
  void note(panel<T, Arch> p, index first) {
    if (first >= p.last) return;
    p.data = data_;
    p.head_stride = count_ * ld_;
    p.row_stride = ld_;
    p.origin = 0;
    p.hide(T(0));
    column_ = p.column;
    first_ = (std::min)(first_, first);
    last_ = (std::max)(last_, p.last);
    begin_ = (std::min)(begin_, p.begin);
    end_ = (std::max)(end_, p.end);
  }
  // x_ij = <queries_i, u_j>: dqueries_i += sum over j of dx_ij u_j,
  //                          du_j += sum over i of dx_ij queries_i
  void retreat() {
    if (first_ >= last_) return;
    const workspace::scope taken(*memory_);
    const index ld = round_up(D_, width<T, Arch>), keys = last_ - first_, rows = end_ - begin_;
    T* u = memory_->take<T>(keys * ld);
    bool careful = false;
    for (index g = 0; g < heads_; ++g) {
      const index kv = (head_ + g) / group_;
      if (g == 0 || (head_ + g) % group_ == 0) {
        copy_rows<Arch>(u_.pointer(batch_, first_key_ + column_ + first_, kv, index{0}),
                        u_.stride(1), u_.stride(3), keys, D_, u, ld);
        careful = !finite_ || !all_finite<Arch>(u, ld, keys, D_);
      }
      T* dx = line(g, begin_) + first_;
      add_product<Arch>(careful, dx, ld_, u, ld, dqueries_.row(g, begin_), ld, rows, D_, keys);
      if (dkeys_.data != nullptr) {
        add_product_transposed<Arch>(careful, dx, ld_, queries_ + (g * count_ + begin_) * D_, D_,
                                     dkeys_.row(kv - kv_head_, column_ + first_), dkeys_.row_stride,
                                     keys, D_, rows);
      }
      for (index r = 0; r < rows; ++r) {
        for (index c = 0; c < keys; ++c) dx[r * ld_ + c] = T(0);
      }
    }
    forget();
  }
  // queries_i = factor q_i
  void finish(const head_rows<T>& dq) const {
    for (index g = 0; g < heads_; ++g) {
      for (index r = 0; r < count_; ++r) {
        const T* from = dqueries_.row(g, r);
        T* to = dq.row(g, r);
        for (index d = 0; d < D_; ++d) to[d] += factor_ * from[d];
      }
    }
  }

 private:
  void forget() noexcept {
    first_ = begin_ = PTRDIFF_MAX;
    last_ = end_ = 0;
  }

  tensor_view<const T, 4> u_;
  index batch_ = 0, first_key_ = 0, head_ = 0, heads_ = 0, count_ = 0, D_ = 0, group_ = 1;
  index kv_head_ = 0, ld_ = 0;
  index column_ = 0, first_ = 0, last_ = 0, begin_ = 0, end_ = 0;  // what lines hold
  const T* queries_ = nullptr;
  T factor_ = 1;
  bool finite_ = true;  // the queries
  T* data_ = nullptr;   // [heads][count][ld]
  head_rows<T> dkeys_, dqueries_;
  workspace* memory_ = nullptr;
};

}  // namespace heed::inline HEED_ABI::kernel
