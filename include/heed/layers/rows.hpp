// Hidden states [B, T, model_dim] with any strides as rows of one matrix: where they lie when they
// are such rows, else by way of a copy.
#pragma once

#include "heed/layers/parameter.hpp"

namespace heed::inline HEED_ABI::layers {

// Whether tokens follow one another at one distance, each contiguous.
template <class T>
bool are_rows(const tensor_view<T, 3>& x) noexcept {
  const bool contiguous = x.extent(2) <= 1 || x.stride(2) == 1;
  const bool even =
      x.extent(0) <= 1 || x.extent(1) <= 1 || x.stride(0) == x.extent(1) * x.stride(1);
  const index step = x.extent(1) > 1 ? x.stride(1) : x.stride(0);
  return contiguous && even && (x.extent(0) * x.extent(1) <= 1 || step >= x.extent(2));
}
template <class T>
tensor_view<T, 2> rows_in_place(const tensor_view<T, 3>& x) {
  const index step = x.extent(1) > 1 ? x.stride(1) : x.stride(0);
  const bool single = x.extent(0) * x.extent(1) <= 1;
  return {x.data(), {x.extent(0) * x.extent(1), x.extent(2)}, {single ? x.extent(2) : step, 1}};
}

// f(row, component, element) for every element of x.
template <class T, class F>
void for_each_component(const tensor_view<T, 3>& x, const F& f) {
  for (index b = 0; b < x.extent(0); ++b) {
    for (index t = 0; t < x.extent(1); ++t) {
      for (index c = 0; c < x.extent(2); ++c) f(b * x.extent(1) + t, c, x(b, t, c));
    }
  }
}

// For reading; `copy` serves where x is not rows.
template <class T>
tensor_view<const T, 2> as_rows(const tensor_view<const T, 3>& x, buffer<T>& copy) {
  if (are_rows(x)) return rows_in_place(x);
  copy.resize(x.extent(0) * x.extent(1), x.extent(2));
  for_each_component(x, [&](index r, index c, T value) { copy.row(r)[c] = value; });
  return std::as_const(copy).matrix();
}

// For writing: begin(y), then finish(y) when the rows are complete.
template <class T>
class written_rows {
 public:
  tensor_view<T, 2> begin(const tensor_view<T, 3>& y) {
    copied_ = !are_rows(y);
    if (!copied_) return rows_in_place(y);
    copy_.resize(y.extent(0) * y.extent(1), y.extent(2));
    return copy_.matrix();
  }
  void finish(const tensor_view<T, 3>& y) const {
    if (!copied_) return;
    for_each_component(y, [&](index r, index c, T& value) { value = copy_.row(r)[c]; });
  }

 private:
  buffer<T> copy_;
  bool copied_ = false;
};

}  // namespace heed::inline HEED_ABI::layers
