// Linear maps of tokens, y = x W^T + b.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <utility>

#include "heed/eigen.hpp"
#include "heed/layers/context.hpp"
#include "heed/layers/parameter.hpp"

namespace heed::inline HEED_ABI::layers {

// c += a b by Eigen, on the calling thread: a [m, k], b [k, n], c [m, n]. c has rows without gaps
// between their elements; a and b may be transposes of such, but not both.
template <class T>
void eigen_product(const tensor_view<const T, 2>& a, const tensor_view<const T, 2>& b,
                   const tensor_view<T, 2>& c) {
  using outer = Eigen::OuterStride<>;
  using matrix = row_major_matrix<T>;
  using map = Eigen::Map<const matrix, Eigen::Unaligned, outer>;
  const auto rows = [](const auto& x) {
    return map(x.data(), x.extent(0), x.extent(1), outer(x.stride(0)));
  };
  const auto transposed = [](const auto& x) {
    return map(x.data(), x.extent(1), x.extent(0), outer(x.stride(1)));
  };
  Eigen::Map<matrix, Eigen::Unaligned, outer> to(c.data(), c.extent(0), c.extent(1),
                                                 outer(c.stride(0)));
  if (a.stride(1) != 1) {
    to.noalias() += transposed(a).transpose() * rows(b);
  } else if (b.stride(1) != 1) {
    to.noalias() += rows(a) * transposed(b).transpose();
  } else {
    to.noalias() += rows(a) * rows(b);
  }
}

// c += a b: a [m, k], b [k, n], c [m, n], by the context's product or Eigen's.
template <class T>
void multiply(const layer_context<T>& context, const tensor_view<const T, 2>& a,
              const tensor_view<const T, 2>& b, const tensor_view<T, 2>& c) {
  if (b.empty() || c.empty()) return;
  context.for_rows(c.extent(0), [&](index begin, index end) {
    const auto rows = a.slice(0, begin, end);
    const auto to = c.slice(0, begin, end);
    context.product.given() ? context.product(rows, b, to) : eigen_product<T>(rows, b, to);
  });
}

// y = x W^T + b with weight [out, in] and, where the layer has one, bias [out].
template <class T>
struct projection {
  parameter<T> weight, bias;

  projection() = default;
  projection(index in, index out, bool with_bias)
      : weight({out, in}, 0, 1 / std::sqrt(static_cast<double>((std::max)(index{1}, in)))) {
    if (with_bias) bias = parameter<T>({out});
  }

  bool exists() const noexcept { return weight.exists(); }
  index in() const noexcept { return weight.shape[1]; }
  index out() const noexcept { return weight.shape[0]; }

  void each_parameter(const std::string& name, const parameter_visitor<T>& f) {
    visit_parameter(f, name + ".weight", weight);
    visit_parameter(f, name + ".bias", bias);
  }

  // x [N, in] -> y [N, out].
  void forward(const tensor_view<const T, 2>& x, const tensor_view<T, 2>& y,
               const layer_context<T>& context) const {
    const T* start = bias.exists() ? bias.value.data() : nullptr;
    for (index r = 0; r < y.extent(0); ++r) {
      T* row = y.data() + r * y.stride(0);
      for (index c = 0; c < y.extent(1); ++c) row[c] = start != nullptr ? start[c] : T(0);
    }
    multiply(context, x, weight.template view<2>().permute({1, 0}), y);
  }
  // dweight += dy^T x, dbias += sum of dy, dx += dy W. No data in dx: not wanted.
  void backward(const tensor_view<const T, 2>& x, const tensor_view<const T, 2>& dy,
                const tensor_view<T, 2>& dx, const layer_context<T>& context) {
    weight.need_gradient();
    bias.need_gradient();
    multiply(context, dy.permute({1, 0}), x, weight.template gradient_view<2>());
    add_bias_gradient(dy);
    if (dx.data() != nullptr) {
      multiply(context, dy, std::as_const(weight).template view<2>(), dx);
    }
  }

 private:
  // In double: what is summed over all tokens often nearly cancels.
  void add_bias_gradient(const tensor_view<const T, 2>& dy) {
    if (!bias.exists()) return;
    std::vector<double> sums(bias.value.size());
    for (index r = 0; r < dy.extent(0); ++r) {
      const T* row = dy.data() + r * dy.stride(0);
      for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += static_cast<double>(row[c]);
    }
    for (std::size_t c = 0; c < sums.size(); ++c) bias.gradient[c] += static_cast<T>(sums[c]);
  }
};

// Two linear maps with nothing between them, W = up down, of a rank below both sizes; or one map.
template <class T>
struct low_rank_projection {
  projection<T> down, up;
  struct tape {
    buffer<T> between, d_between;
  };

  low_rank_projection() = default;
  // rank 0: one map, without `down`.
  low_rank_projection(index in, index out, index rank) : up(rank > 0 ? rank : in, out, false) {
    if (rank > 0) down = projection<T>(in, rank, false);
  }
  bool exists() const noexcept { return up.exists(); }
  index out() const noexcept { return up.out(); }

  void each_parameter(const std::string& name, const parameter_visitor<T>& f) {
    down.each_parameter(name + "_down", f);
    up.each_parameter(name, f);
  }
  void forward(const tensor_view<const T, 2>& x, const tensor_view<T, 2>& y, tape& kept,
               const layer_context<T>& context) const {
    if (!down.exists()) return up.forward(x, y, context);
    kept.between.resize(x.extent(0), down.out());
    down.forward(x, kept.between.matrix(), context);
    up.forward(kept.between.matrix(), y, context);
  }
  void backward(const tensor_view<const T, 2>& x, const tensor_view<const T, 2>& dy,
                const tensor_view<T, 2>& dx, tape& kept, const layer_context<T>& context) {
    if (!down.exists()) return up.backward(x, dy, dx, context);
    kept.d_between.resize_zero(x.extent(0), down.out());
    up.backward(std::as_const(kept.between).matrix(), dy, kept.d_between.matrix(), context);
    down.backward(x, std::as_const(kept.d_between).matrix(), dx, context);
  }
};

}  // namespace heed::inline HEED_ABI::layers
