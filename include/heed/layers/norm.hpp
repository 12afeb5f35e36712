// RMSNorm of each head of each token, with one weight for all heads or a weight for each.
//
//   y_c = x_c / sqrt(mean(x^2) + eps) weight_c        over the D components of the head
//
// Zhang and Sennrich, arXiv 1910.07467.
#pragma once

#include "heed/kernel/norm.hpp"
#include "heed/layers/context.hpp"
#include "heed/layers/parameter.hpp"

namespace heed::inline HEED_ABI::layers {

enum class norm_weight { shared, per_head };

template <class T>
struct rms_norm {
  parameter<T> weight;  // [D], or [heads D]
  index heads = 0, size = 0;
  double eps = 1e-5;

  rms_norm() = default;
  // Throws shape_error unless eps is above 0.
  rms_norm(index head_count, index head_size, norm_weight of, double epsilon)
      : weight({of == norm_weight::shared ? head_size : head_count * head_size}, 1),
        heads(head_count),
        size(head_size),
        eps(epsilon) {
    if (!(eps > 0)) {
      throw shape_error("heed: rms_norm: eps: is " + std::to_string(eps) + ", expected above 0");
    }
  }
  bool exists() const noexcept { return weight.exists(); }
  void each_parameter(const std::string& name, const parameter_visitor<T>& f) {
    visit_parameter(f, name + ".weight", weight);
  }

  // x [N, heads D] -> y, which may be x.
  void forward(const buffer<T>& x, buffer<T>& y, const layer_context<T>& context) const {
    y.resize(x.rows(), x.cols());
    context.for_rows(x.rows(), [&](index begin, index end) {
      for (index r = begin; r < end; ++r) {
        const T* from = x.row(r);
        T* to = y.row(r);
        for (index h = 0; h < heads; ++h, from += size, to += size) {
          for (index c = 0; c < size && from != to; ++c) to[c] = from[c];
          kernel::rms_norm_row(to, size, weight.value.data() + at(h), eps, 1.0);
        }
      }
    });
  }
  // x as forward got it; the gradient of y becomes that of x. dweight += what the tokens give.
  void backward(const buffer<T>& x, buffer<T>& gradient) {
    weight.need_gradient();
    std::vector<double> sums(weight.value.size());
    for (index r = 0; r < x.rows(); ++r) {
      for (index h = 0; h < heads; ++h) {
        kernel::rms_norm_row_backward(x.row(r) + h * size, size, weight.value.data() + at(h), eps,
                                      1.0, gradient.row(r) + h * size, sums.data() + at(h));
      }
    }
    for (std::size_t n = 0; n < sums.size(); ++n) weight.gradient[n] += static_cast<T>(sums[n]);
  }

 private:
  index at(index head) const noexcept { return weight.size() == size ? 0 : head * size; }
};

}  // namespace heed::inline HEED_ABI::layers
