// Norm and gate on the finished output, per token and head.
//
//   head_norm   y <- factor y / sqrt(mean(y^2) + eps) weight
//   head_gate   y <- y sigmoid(<weight_0, y> + bias_0)     one gate for the whole head
//               y <- y sigmoid(weight y + bias)            one per component
//
// The same weights for all heads. MTA lists the norm first, with factor = 1 - lambda_init(layer).
// Cost: a few operations per output; the gate per component Dv multiply-adds.
// Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
#pragma once

#include <cmath>
#include <string>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/norm.hpp"
#include "heed/kernel/reverse.hpp"
#include "heed/kernel/tile.hpp"

namespace heed::inline HEED_ABI {

// The depth scaling of the Differential Transformer and MTA: lambda_init(layer), layers from 0.
// Ye et al., arXiv 2410.05258.
inline double lambda_init(index layer) {
  return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(layer));
}

template <class T>
struct head_norm_grad {
  tensor_view<T, 1> weight = {};
};
template <class T>
struct head_gate_grad {
  tensor_view<T, 2> weight = {};
  tensor_view<T, 1> bias = {};
};

// RMSNorm of the output over Dv. Without a weight (a default view) the stage is not there.
template <class T>
struct head_norm {
  static constexpr place where = place::output;
  static constexpr hook hooks = hook::check | hook::active | hook::plan | hook::output |
                                hook::output_grad | hook::gradients | hook::sums;
  using gradient_type = head_norm_grad<T>;

  tensor_view<const T, 1> weight;  // [Dv]
  double eps = 1e-5;
  double factor = 1;  // 1 - lambda_init(layer) for depth scaling

  bool active() const noexcept { return weight.data() != nullptr; }

  // Throws shape_error unless the weight is [Dv] and eps > 0.
  void check(const problem& p) const {
    if (!active()) return;
    check_extents("head_norm", "weight", weight, {{{"value head size", p.Dv}}});
    if (!(eps > 0)) {
      throw shape_error("heed: head_norm: eps: is " + std::to_string(eps) + ", expected above 0");
    }
  }
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    const index n = active() ? c.problem.Dv : 0;
    U* own = c.memory.template take<U>(n);
    for (index d = 0; d < n; ++d) own[d] = static_cast<U>(weight(d));
    return plan_type<U>{own, n, eps, factor};
  }

  template <class F>
  void gradients(const head_norm_grad<T>& d, const F& f) const {
    f("head_norm.weight", d.weight, weight);
  }
  auto sums(const head_norm_grad<T>& d, const auto& c) const {
    if (d.weight.data() == nullptr) return sums_type{};
    sums_type s{d.weight, c.memory.template take<double>(weight.extent(0))};
    for (index n = 0; n < weight.extent(0); ++n) s.sum[n] = 0;
    return s;
  }

 private:
  struct sums_type {
    tensor_view<T, 1> to;
    double* sum = nullptr;  // [Dv]

    void reduce() const {
      for (index n = 0; sum != nullptr && n < to.extent(0); ++n) to(n) += static_cast<T>(sum[n]);
    }
  };
  template <class U>
  struct plan_type {
    const U* weight;
    index n;
    double eps, factor;
    void output(index, index, U* line, workspace&) const {
      if (n > 0) kernel::rms_norm_row(line, n, weight, eps, factor);
    }
    // output: dx = factor / rms (weight dy - x <weight dy, x> / (Dv rms^2)),
    // dweight += factor / rms x dy
    void output_grad(index, index, const U* line, U* gradient, const sums_type& to,
                     workspace&) const {
      if (n > 0) kernel::rms_norm_row_backward(line, n, weight, eps, factor, gradient, to.sum);
    }
  };
};
template <class T>
head_norm_grad(tensor_view<T, 1>) -> head_norm_grad<T>;
template <class T>
head_norm(tensor_view<T, 1>) -> head_norm<std::remove_const_t<T>>;
template <class T>
head_norm(tensor_view<T, 1>, double) -> head_norm<std::remove_const_t<T>>;
template <class T>
head_norm(tensor_view<T, 1>, double, double) -> head_norm<std::remove_const_t<T>>;

// Sigmoid gate on the output: one number for the whole head (weight [1, Dv], bias [1]) or one per
// component (weight [Dv out, Dv in], bias [Dv]). Without a weight (a default view) the stage is not
// there.
template <class T>
struct head_gate {
  static constexpr place where = place::output;
  static constexpr hook hooks = hook::check | hook::active | hook::plan | hook::output |
                                hook::output_grad | hook::gradients | hook::sums;
  using gradient_type = head_gate_grad<T>;

  tensor_view<const T, 2> weight;  // [1|Dv, Dv]
  tensor_view<const T, 1> bias;    // as many as weight has rows

  bool active() const noexcept { return weight.data() != nullptr; }

  // Throws shape_error unless the weight is [1|Dv, Dv] and bias has as many entries as its rows.
  void check(const problem& p) const {
    if (!active()) return;
    check_extents("head_gate", "weight", weight,
                  {{{"gates", p.Dv, true}, {"value head size", p.Dv}}});
    check_extents("head_gate", "bias", bias, {{{"gates", weight.extent(0)}}});
  }
  // The weight is kept transposed, so that the gates of a row are one product.
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    const index gates = active() ? weight.extent(0) : 0, n = active() ? c.problem.Dv : 0;
    const index ld = kernel::round_up(gates, kernel::width<U, Arch>);
    U* columns = c.memory.template take<U>(n * ld);
    U* start = c.memory.template take<U>(ld);
    for (index g = 0; g < ld; ++g) {
      start[g] = g < gates ? static_cast<U>(bias(g)) : U(0);
      for (index d = 0; d < n; ++d) {
        columns[d * ld + g] = g < gates ? static_cast<U>(weight(g, d)) : U(0);
      }
    }
    return plan_type<U, Arch>{columns, start, gates, n, ld};
  }

  template <class F>
  void gradients(const head_gate_grad<T>& d, const F& f) const {
    f("head_gate.weight", d.weight, weight);
    f("head_gate.bias", d.bias, bias);
  }
  auto sums(const head_gate_grad<T>& d, const auto& c) const {
    sums_type s{d};
    const auto take = [&](const auto& view, index size, double*& sum) {
      if (view.data() == nullptr) return;
      sum = c.memory.template take<double>(size);
      for (index n = 0; n < size; ++n) sum[n] = 0;
    };
    take(d.weight, weight.size(), s.weight);
    take(d.bias, bias.size(), s.bias);
    return s;
  }

 private:
  struct sums_type {
    head_gate_grad<T> to;
    double* weight = nullptr;  // [gates][Dv]
    double* bias = nullptr;    // [gates]

    void reduce() const {
      const index n = to.weight.extent(1);
      for (index g = 0; weight != nullptr && g < to.weight.extent(0); ++g) {
        for (index d = 0; d < n; ++d) to.weight(g, d) += static_cast<T>(weight[g * n + d]);
      }
      for (index g = 0; bias != nullptr && g < to.bias.extent(0); ++g) {
        to.bias(g) += static_cast<T>(bias[g]);
      }
    }
  };
  template <class U, class Arch>
  struct plan_type {
    const U* columns;  // [Dv][ld]
    const U* start;    // [ld]
    index gates, n, ld;

    void output(index, index, U* line, workspace& scratch) const {
      const workspace::scope taken(scratch);
      kernel::gate_row<Arch>(line, n, gates_of(line, scratch));
    }
    // output, with du the gradient of what the sigmoid reads: dx = dy sigmoid(u) + weight^T du,
    // dweight += du x^T, dbias += du
    void output_grad(index, index, const U* line, U* gradient, const sums_type& to,
                     workspace& scratch) const {
      if (gates == 1) {
        single_gate_grad(line, gradient, to);
        return;
      }
      const workspace::scope taken(scratch);
      U* du = gates_of(line, scratch);
      kernel::gate_row_backward<Arch>(line, n, du, gradient);
      for (index d = 0; d < n; ++d) gradient[d] += kernel::dot_row(columns + d * ld, du, gates);
      for (index g = 0; g < gates; ++g) add_weights(g, static_cast<double>(du[g]), line, to);
    }

   private:
    // With one gate for the whole head, in double: its bias sums what nearly cancels.
    void single_gate_grad(const U* line, U* gradient, const sums_type& to) const {
      double u = static_cast<double>(start[0]), product = 0;
      for (index d = 0; d < n; ++d) {
        const auto x = static_cast<double>(line[d]);
        u += static_cast<double>(columns[d * ld]) * x;
        product += static_cast<double>(gradient[d]) * x;
      }
      const double open = 1 / (1 + std::exp(-u)), du = product * open * (1 - open);
      for (index d = 0; d < n; ++d) {
        gradient[d] = static_cast<U>(open * static_cast<double>(gradient[d]) +
                                     du * static_cast<double>(columns[d * ld]));
      }
      add_weights(0, du, line, to);
    }
    void add_weights(index g, double du, const U* line, const sums_type& to) const {
      if (to.bias != nullptr) to.bias[g] += du;
      for (index d = 0; d < n && to.weight != nullptr; ++d) {
        to.weight[g * n + d] += du * static_cast<double>(line[d]);
      }
    }
    // What the sigmoid of every component reads.
    U* gates_of(const U* line, workspace& scratch) const {
      U* gate = scratch.take<U>((std::max)(ld, kernel::round_up(n, kernel::width<U, Arch>)));
      kernel::product<Arch>(line, n, columns, ld, gate, ld, 1, gates, n, kernel::start::row_bias,
                            start);
      for (index d = 1; d < n && gates == 1; ++d) gate[d] = gate[0];
      return gate;
    }
  };
};
template <class T>
head_gate_grad(tensor_view<T, 2>, tensor_view<T, 1>) -> head_gate_grad<T>;
template <class T, class U>
head_gate(tensor_view<T, 2>, tensor_view<U, 1>) -> head_gate<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
