// How the kernels and matrices of conv, conv3, head_mix and group_mix start: the published choices.
//
// Each function fills a view of any strides, in the order of its indices. What is random comes from
// a generator of the standard (std::mt19937_64, for one) and nothing else, so that a seed fixes it.
// Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
#pragma once

#include <cmath>
#include <random>

#include "heed/mechanisms/conv.hpp"

namespace heed::inline HEED_ABI {

namespace detail {

// next() for every element, the last axis fastest.
template <class T, int Rank, class Next, class... At>
void fill_elements(const tensor_view<T, Rank>& view, Next& next, At... at) {
  if constexpr (sizeof...(At) == static_cast<std::size_t>(Rank)) {
    view(at...) = static_cast<T>(next());
  } else {
    for (index i = 0; i < view.extent(static_cast<int>(sizeof...(At))); ++i) {
      fill_elements(view, next, at..., i);
    }
  }
}

}  // namespace detail

// Every element becomes `value`; published with 0.3.
template <class T, int Rank>
void init_constant(const tensor_view<T, Rank>& view, double value = 0.3) {
  const auto next = [&] { return value; };
  detail::fill_elements(view, next);
}

// Uniform in [-limit, limit).
template <class T, int Rank, class Generator>
void init_uniform(const tensor_view<T, Rank>& view, Generator& generator, double limit = 1) {
  const auto next = [&] {
    return limit * (2 * std::generate_canonical<double, 53>(generator) - 1);
  };
  detail::fill_elements(view, next);
}

// Normal with mean 0, drawn again beyond 3 standard deviations.
template <class T, int Rank, class Generator>
void init_normal(const tensor_view<T, Rank>& view, Generator& generator, double deviation = 0.3) {
  constexpr double turn = 6.283185307179586;
  const auto next = [&] {
    double x = 4;
    while (!(std::abs(x) <= 3)) {
      const double radius = 1 - std::generate_canonical<double, 53>(generator);  // in (0, 1]
      const double angle = std::generate_canonical<double, 53>(generator);
      x = std::sqrt(-2 * std::log(radius)) * std::cos(turn * angle);
    }
    return deviation * x;
  };
  detail::fill_elements(view, next);
}

// The kernel [Hq, cq, ck] that leaves every entry as it is: 1 at the query and key themselves.
template <class T>
void init_identity(const tensor_view<T, 3>& kernel, conv_keys side) {
  init_constant(kernel, 0);
  for (index h = 0; h < kernel.extent(0); ++h) {
    kernel(h, kernel.extent(1) - 1, older_keys(kernel.extent(2), side)) = T(1);
  }
}
// The same of [Hq, ch, cq, ck]: 1 only where head h meets itself, r = h % ch.
template <class T>
void init_identity(const tensor_view<T, 4>& kernel, conv_keys side) {
  init_constant(kernel, 0);
  for (index h = 0; h < kernel.extent(0); ++h) {
    kernel(h, h % kernel.extent(1), kernel.extent(2) - 1, older_keys(kernel.extent(3), side)) =
        T(1);
  }
}
// The matrix [Hq, Hq] of head_mix that leaves heads as they are.
template <class T>
void init_identity(const tensor_view<T, 2>& matrix) {
  init_constant(matrix, 0);
  for (index h = 0; h < matrix.extent(0); ++h) matrix(h, h) = T(1);
}
// The matrices [Hq / ch, ch, ch] of group_mix that leave heads as they are.
template <class T>
void init_identity(const tensor_view<T, 3>& matrices) {
  init_constant(matrices, 0);
  for (index m = 0; m < matrices.extent(0); ++m) {
    for (index r = 0; r < matrices.extent(1); ++r) matrices(m, r, r) = T(1);
  }
}

}  // namespace heed::inline HEED_ABI
