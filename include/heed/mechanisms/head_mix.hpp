// Heads that mix, entry by entry, before softmax or (after{...}) behind it.
//
//   head_mix    Z_o <- sum over h of W[o,h] Z_h                    all heads
//   group_mix   Z_(m ch + o) <- sum over r of M[m][r][o] Z_(m ch + r)   groups of ch neighbours
//
// Invisible entries and logits of -inf are 0 where a stage reads them; invisible entries stay
// invisible. The two matrices have opposite orders, those of the published code. Cost: as many
// multiply-adds per score as heads mix.
// Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
//
// The attention of the Differential Transformer (Ye et al., arXiv 2410.05258), softmax of one head
// minus lambda times softmax of its partner, is after{group_mix{M}} with M[m] = [[1, 1],
// [-lambda, -lambda]]: heads 2m and 2m + 1 hold the two maps, their value heads the two halves of
// the pair's value; both end up with the same weights. The pair's two outputs side by side are its
// 2 Dv components, which the caller norms and multiplies by 1 - lambda_init(layer).
#pragma once

#include <string>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/mix.hpp"

namespace heed::inline HEED_ABI {

namespace detail {

inline constexpr hook mix_hooks = hook::check | hook::geometry | hook::active | hook::plan |
                                  hook::rows | hook::forward | hook::gradients | hook::sums |
                                  hook::begin_backward | hook::backward | hook::keeps_input;

// What one gradient owner adds up for weights [Hq out][group in].
struct mix_sums {
  index head = 0, count = 0;  // of the owner's heads
  index group = 0;
  double* data = nullptr;

  template <class Context>
  void take(const Context& c) {
    head = c.head;
    count = c.heads;
    data = c.memory.template take<double>(count * group);
    for (index n = 0; n < count * group; ++n) data[n] = 0;
  }
  // add(out, in, sum) for every weight, out counted in the call, in within the group of out.
  template <class Add>
  void each(const Add& add) const {
    for (index n = 0; n < count * group; ++n) add(head + n / group, n % group, data[n]);
  }
};

template <class T, class Arch>
struct mix_rows {
  const T* weights;
  index group;
  T* aside;
  // In the reverse sweep.
  T* transposed = nullptr;  // [heads in][group out]
  T* lanes = nullptr;
  double* sums = nullptr;  // [heads out][group in]

  void forward(const panel<T, Arch>& p) const {
    kernel::mix_heads(p, weights + p.head * group, group, aside);
  }
  template <class Sums>
  void begin_backward(const reverse_context<T, Arch>& c, const Sums& to) {
    const index heads = c.rows.heads;
    transposed = c.memory.template take<T>(heads * group);
    for (index o = 0; o < heads; ++o) {
      for (index in = 0; in < group; ++in) {
        transposed[(o / group * group + in) * group + o % group] =
            weights[(c.rows.head + o) * group + in];
      }
    }
    sums = to.data == nullptr ? nullptr : to.data + (c.rows.head - to.head) * group;
    if (sums != nullptr) {
      lanes = c.memory.template take<T>(group * group * kernel::width<T, Arch>);
    }
  }
  // forward: dW[o,h] += sum over i, j of dZ'_o Z_h,  dZ_h <- sum over o of W[o,h] dZ'_o
  void backward(const reverse_panel<T, Arch>& p) const {
    if (sums != nullptr) kernel::add_mix_weights(p, group, lanes, sums);
    kernel::mix_heads(p, transposed, group, aside);
  }
};
template <class T>
struct mix_plan {
  const T* weights;  // [Hq out][group in]
  index group;

  template <class Arch>
  auto rows(const rows_context<T, Arch>& c) const {
    const index columns = weights == nullptr ? 0 : kernel::mix_columns<T, Arch>;
    return mix_rows<T, Arch>{weights, group, c.memory.template take<T>(group * columns)};
  }
};
// Packs weight(out, in), both counted in the call and in the group of out.
template <class T, class Arch, class Weight>
mix_plan<T> plan_mix(const plan_context<T, Arch>& c, bool active, index group,
                     const Weight& weight) {
  if (!active) return {nullptr, 0};
  T* weights = c.memory.template take<T>(c.problem.Hq * group);
  for (index o = 0; o < c.problem.Hq; ++o) {
    for (index in = 0; in < group; ++in) weights[o * group + in] = static_cast<T>(weight(o, in));
  }
  return {weights, group};
}

}  // namespace detail

template <class T>
struct head_mix_grad {
  tensor_view<T, 2> matrix = {};
};
template <class T>
struct group_mix_grad {
  tensor_view<T, 3> matrices = {};
};

// A full mix of heads. Without a matrix (a default view) the stage is not there.
template <class T>
struct head_mix {
  static constexpr place where = place::logits;
  static constexpr hook hooks = detail::mix_hooks;
  using gradient_type = head_mix_grad<T>;

  tensor_view<const T, 2> matrix;  // [Hq out, Hq in]

  bool active() const noexcept { return matrix.data() != nullptr; }

  // Throws shape_error unless the matrix is [Hq, Hq].
  void check(const problem& p) const {
    if (!active()) return;
    check_extents("head_mix", "matrix", matrix, {{{"heads out", p.Hq}, {"heads in", p.Hq}}});
  }
  heed::geometry geometry() const {
    return {0, 0, 0, matrix.extent(1), heed::geometry::invisible::zero};
  }
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    return detail::plan_mix(c, active(), matrix.extent(1),
                            [&](index out, index in) { return matrix(out, in); });
  }

  template <class F>
  void gradients(const head_mix_grad<T>& d, const F& f) const {
    f("head_mix.matrix", d.matrix, matrix);
  }
  auto sums(const head_mix_grad<T>& d, const auto& c) const {
    sums_type s{{0, 0, matrix.extent(1)}, d.matrix};
    if (d.matrix.data() != nullptr) s.take(c);
    return s;
  }

 private:
  struct sums_type : detail::mix_sums {
    tensor_view<T, 2> to;

    void reduce() const {
      if (data == nullptr) return;
      each([&](index out, index in, double sum) { to(out, in) += static_cast<T>(sum); });
    }
  };
};
template <class T>
head_mix_grad(tensor_view<T, 2>) -> head_mix_grad<T>;
template <class T>
head_mix(tensor_view<T, 2>) -> head_mix<std::remove_const_t<T>>;

// A mix within groups of ch neighbouring heads. Without matrices (a default view) the stage is not
// there.
template <class T>
struct group_mix {
  static constexpr place where = place::logits;
  static constexpr hook hooks = detail::mix_hooks;
  using gradient_type = group_mix_grad<T>;

  tensor_view<const T, 3> matrices;  // [Hq / ch, ch in, ch out]

  bool active() const noexcept { return matrices.data() != nullptr; }

  // Throws shape_error unless the matrices are square and groups times ch is Hq.
  void check(const problem& p) const {
    if (!active()) return;
    const index ch = matrices.extent(1);
    if (ch < 1 || p.Hq % ch != 0) {
      throw_axis_error("group_mix", "matrices", 1, "heads in", ch,
                       "a divisor of the " + std::to_string(p.Hq) + " query heads");
    }
    check_extents("group_mix", "matrices", matrices,
                  {{{"groups", p.Hq / ch}, {"heads in", ch}, {"heads out", ch}}});
  }
  heed::geometry geometry() const {
    return {0, 0, 0, matrices.extent(1), heed::geometry::invisible::zero};
  }
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    const index ch = matrices.extent(1);
    return detail::plan_mix(c, active(), ch,
                            [&](index out, index in) { return matrices(out / ch, in, out % ch); });
  }

  template <class F>
  void gradients(const group_mix_grad<T>& d, const F& f) const {
    f("group_mix.matrices", d.matrices, matrices);
  }
  auto sums(const group_mix_grad<T>& d, const auto& c) const {
    sums_type s{{0, 0, matrices.extent(1)}, d.matrices};
    if (d.matrices.data() != nullptr) s.take(c);
    return s;
  }

 private:
  struct sums_type : detail::mix_sums {
    tensor_view<T, 3> to;

    void reduce() const {
      if (data == nullptr) return;
      each([&](index out, index in, double sum) {
        to(out / group, in, out % group) += static_cast<T>(sum);
      });
    }
  };
};
template <class T>
group_mix_grad(tensor_view<T, 3>) -> group_mix_grad<T>;
template <class T>
group_mix(tensor_view<T, 3>) -> group_mix<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
