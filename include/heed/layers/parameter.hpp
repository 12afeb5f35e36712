// What a layer learns, and the buffers between its parts.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "heed/tensor.hpp"

namespace heed::inline HEED_ABI::layers {

// One tensor of a layer, row-major, and its gradient. A part that does not have it holds a
// default one, of no axes.
template <class T>
struct parameter {
  std::vector<index> shape;
  std::vector<T> value;
  std::vector<T> gradient;  // empty until the first backward or zero_gradients
  bool learned = true;      // false: part of the weights, without a gradient
  double spread = 0;        // initialize(): standard deviation of random values; 0: as built

  parameter() = default;
  // Holds `filled`. Throws shape_error for a shape that does not fit in memory.
  explicit parameter(std::vector<index> extents, double filled = 0, double deviation = 0)
      : shape(std::move(extents)), spread(deviation) {
    index size = 1;
    for (const index e : shape) {
      if (e < 0 || (e > 0 && size > PTRDIFF_MAX / static_cast<index>(sizeof(T)) / e)) {
        throw shape_error("heed: parameter: axis of extent " + std::to_string(e) +
                          " does not fit in memory");
      }
      size *= e;
    }
    value.assign(static_cast<std::size_t>(size), static_cast<T>(filled));
  }

  bool exists() const noexcept { return !shape.empty(); }
  index size() const noexcept { return static_cast<index>(value.size()); }

  // The value as a view of Rank axes. A view without data where the parameter does not exist.
  template <int Rank>
  tensor_view<const T, Rank> view() const {
    return shaped<const T, Rank>(value.data());
  }
  template <int Rank>
  tensor_view<T, Rank> view() {
    return shaped<T, Rank>(value.data());
  }
  // Of the gradient; without data where there is none or none is wanted.
  template <int Rank>
  tensor_view<T, Rank> gradient_view() {
    if (gradient.empty()) return {};
    return shaped<T, Rank>(gradient.data());
  }
  // Makes room for the gradient, 0 at first.
  void need_gradient() {
    if (learned && gradient.size() != value.size()) gradient.assign(value.size(), T(0));
  }

 private:
  template <class U, int Rank>
  tensor_view<U, Rank> shaped(U* data) const {
    if (!exists()) return {};
    if (shape.size() != static_cast<std::size_t>(Rank)) {
      throw shape_error("heed: parameter: has " + std::to_string(shape.size()) +
                        " axes, expected " + std::to_string(Rank));
    }
    heed::shape<Rank> e{};
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(Rank); ++axis) e[axis] = shape[axis];
    return {data, e};
  }
};

// Calls f(name, parameter) for every parameter that a part has.
template <class T>
using parameter_visitor = std::function<void(const std::string& name, parameter<T>&)>;

template <class T>
void visit_parameter(const parameter_visitor<T>& f, const std::string& name, parameter<T>& p) {
  if (p.exists()) f(name, p);
}

// A parameter as users see it: reached by name or in a flat list.
template <class T>
struct parameter_view {
  std::string name;
  std::span<const index> shape;
  std::span<T> value;
  std::span<T> gradient;  // empty until the first backward or zero_gradients, or if not learned
  bool learned = true;
};

// Rows between the parts of a layer. Memory is kept when the size changes, and some elements
// behind the end may be read and written, so that whole vectors reach the last one.
template <class T>
class buffer {
 public:
  static constexpr index slack = 64 / static_cast<index>(sizeof(T));

  void resize(index rows, index cols) {
    rows_ = rows;
    cols_ = cols;
    const auto need = static_cast<std::size_t>(rows * cols + slack);
    if (data_.size() < need) data_.resize(need);
  }
  void resize_zero(index rows, index cols) {
    resize(rows, cols);
    for (index n = 0; n < size(); ++n) data_[static_cast<std::size_t>(n)] = T(0);
  }

  index rows() const noexcept { return rows_; }
  index cols() const noexcept { return cols_; }
  index size() const noexcept { return rows_ * cols_; }
  T* data() noexcept { return data_.data(); }
  const T* data() const noexcept { return data_.data(); }
  T* row(index r) noexcept { return data() + r * cols_; }
  const T* row(index r) const noexcept { return data() + r * cols_; }

  tensor_view<T, 2> matrix() { return {data(), {rows_, cols_}}; }
  tensor_view<const T, 2> matrix() const { return {data(), {rows_, cols_}}; }
  // [batch, rows / batch, heads, cols / heads].
  tensor_view<T, 4> heads(index batch, index tokens, index count) {
    return {data(), {batch, tokens, count, cols_ / count}};
  }
  tensor_view<const T, 4> heads(index batch, index tokens, index count) const {
    return {data(), {batch, tokens, count, cols_ / count}};
  }
  // [batch, rows / batch, cols].
  tensor_view<T, 3> per_head(index batch, index tokens) { return {data(), {batch, tokens, cols_}}; }
  tensor_view<const T, 3> per_head(index batch, index tokens) const {
    return {data(), {batch, tokens, cols_}};
  }

 private:
  std::vector<T> data_;
  index rows_ = 0, cols_ = 0;
};

// The tokens of one call: `batch` sequences of `tokens` each, as rows of matrices, sequence by
// sequence.
struct token_rows {
  index batch = 0, tokens = 0;

  index count() const noexcept { return batch * tokens; }
};

}  // namespace heed::inline HEED_ABI::layers
