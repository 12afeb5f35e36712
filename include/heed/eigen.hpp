// Eigen matrices, arrays, maps and blocks as views, and views as Eigen maps. Nothing is copied.
#pragma once

#include <Eigen/Core>
#include <string>
#include <type_traits>
#include <utility>

#include "heed/tensor.hpp"

namespace heed::inline HEED_ABI {

namespace detail {

template <class X>
using eigen_plain = std::remove_cvref_t<X>;

// Anything of Eigen's dense family, such as a vector segment, which is a Block by inheritance.
template <class X>
concept eigen_dense = requires(const eigen_plain<X>* x) {
  []<class Derived>(const Eigen::DenseBase<Derived>*) {}(x);
};

// An object whose elements die with it: a matrix, an array, or a Ref<const ...>, which may hold a
// copy.
template <class X>
inline constexpr bool eigen_owns = std::is_base_of_v<Eigen::PlainObjectBase<X>, X>;
template <class M, int Options, class Stride>
inline constexpr bool eigen_owns<Eigen::Ref<const M, Options, Stride>> = true;

template <class X>
constexpr void check_eigen_argument() {
  static_assert(eigen_dense<X>, "heed: an Eigen matrix, array, map or block is expected");
  static_assert((eigen_plain<X>::Flags & Eigen::DirectAccessBit) != 0,
                "heed: an Eigen expression has no elements in memory to view; evaluate it into a "
                "matrix first");
  static_assert(std::is_lvalue_reference_v<X> || !eigen_owns<eigen_plain<X>>,
                "heed: the view would outlive this temporary Eigen matrix; give it a name first");
}

template <class X>
using eigen_element =
    std::remove_pointer_t<decltype(std::declval<std::remove_reference_t<X>&>().data())>;

// Row and column stride in elements. Taken from the addresses: Eigen 3.4 reports a wrong stride for
// the diagonal of a map with an inner stride.
template <class X>
shape<2> eigen_strides(X& x) {
  const auto rows = x.rows(), cols = x.cols();
  const auto* first = x.data();
  if (rows == 0 || cols == 0) return {1, 1};
  return {rows > 1 ? static_cast<index>(&x.coeffRef(1, 0) - first) : 1,
          cols > 1 ? static_cast<index>(&x.coeffRef(0, 1) - first) : 1};
}

// extent / parts, which must come out even.
inline index split(const char* helper, const char* axis, index extent, const char* what,
                   index parts) {
  const auto number = [](index n) { return std::to_string(n); };
  const std::string who = std::string("heed: ") + helper + ": ";
  if (parts < 1) throw shape_error(who + what + " is " + number(parts) + ", expected at least 1");
  if (extent % parts != 0) {
    throw shape_error(who + axis + " is " + number(extent) + ", expected a multiple of " + what +
                      " = " + number(parts));
  }
  return extent / parts;
}

}  // namespace detail

// [rows, cols]: a matrix, array, map, block, transpose of these, in any storage order and with any
// inner and outer strides >= 0. The elements are const where Eigen's are. Expressions (a + b) and
// temporaries that own their elements do not compile; blocks and maps may be temporaries.
// Throws shape_error for a map with a negative stride.
template <class X>
auto matrix_view(X&& x) {
  detail::check_eigen_argument<X>();
  return tensor_view<detail::eigen_element<X>, 2>(
      x.data(), {static_cast<index>(x.rows()), static_cast<index>(x.cols())},
      detail::eigen_strides(x));
}

// [size]: a row or column vector, or what is one by its type: a row, a column, a diagonal.
template <class X>
auto vector_view(X&& x) {
  detail::check_eigen_argument<X>();
  static_assert(detail::eigen_plain<X>::IsVectorAtCompileTime,
                "heed: vector_view takes what is a row or a column by its type; matrix_view takes "
                "matrices");
  const shape<2> strides = detail::eigen_strides(x);
  return tensor_view<detail::eigen_element<X>, 1>(x.data(), {static_cast<index>(x.size())},
                                                  {strides[x.rows() > 1 ? 0 : 1]});
}

// The rank-4 views that attend takes, made of matrices. Each throws shape_error when rows or
// columns do not divide.

// [batch * T, heads * D], the heads of a token side by side, as [batch, T, heads, D].
template <class X>
auto heads_in_columns(X&& x, index heads, index batch = 1) {
  const auto m = matrix_view(std::forward<X>(x));
  const index D =
      detail::split("heads_in_columns", "axis 1 (columns)", m.extent(1), "heads", heads);
  const index T = detail::split("heads_in_columns", "axis 0 (rows)", m.extent(0), "batch", batch);
  return tensor_view<typename decltype(m)::element_type, 4>(
      m.data(), {batch, T, heads, D}, {T * m.stride(0), m.stride(0), D * m.stride(1), m.stride(1)});
}

// [batch * T * heads, D], a row for each head of each token, as [batch, T, heads, D].
template <class X>
auto heads_in_rows(X&& x, index heads, index batch = 1) {
  const auto m = matrix_view(std::forward<X>(x));
  const index n = detail::split("heads_in_rows", "axis 0 (rows)", m.extent(0), "heads", heads);
  const index T = detail::split("heads_in_rows", "axis 0 (rows) / heads", n, "batch", batch);
  return tensor_view<typename decltype(m)::element_type, 4>(
      m.data(), {batch, T, heads, m.extent(1)},
      {T * heads * m.stride(0), heads * m.stride(0), m.stride(0), m.stride(1)});
}

// [batch * heads * T, D], a block of T rows for each head, as [batch, T, heads, D].
template <class X>
auto heads_in_blocks(X&& x, index heads, index batch = 1) {
  const auto m = matrix_view(std::forward<X>(x));
  const index n = detail::split("heads_in_blocks", "axis 0 (rows)", m.extent(0), "heads", heads);
  const index T = detail::split("heads_in_blocks", "axis 0 (rows) / heads", n, "batch", batch);
  return tensor_view<typename decltype(m)::element_type, 4>(
      m.data(), {batch, T, heads, m.extent(1)},
      {heads * T * m.stride(0), m.stride(0), T * m.stride(0), m.stride(1)});
}

// A view's elements as an Eigen map, which reads and writes them in place.
template <class T>
using eigen_vector_map =
    Eigen::Map<std::conditional_t<std::is_const_v<T>,
                                  const Eigen::Vector<std::remove_const_t<T>, Eigen::Dynamic>,
                                  Eigen::Vector<std::remove_const_t<T>, Eigen::Dynamic>>,
               Eigen::Unaligned, Eigen::InnerStride<Eigen::Dynamic>>;
template <class T>
using row_major_matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using eigen_matrix_map = Eigen::Map<
    std::conditional_t<std::is_const_v<T>, const row_major_matrix<std::remove_const_t<T>>,
                       row_major_matrix<std::remove_const_t<T>>>,
    Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

// [n] as a column vector.
template <class T>
eigen_vector_map<T> eigen_map(const tensor_view<T, 1>& view) {
  return {view.data(), view.extent(0), Eigen::InnerStride<Eigen::Dynamic>(view.stride(0))};
}

// [rows, cols] as a matrix.
template <class T>
eigen_matrix_map<T> eigen_map(const tensor_view<T, 2>& view) {
  return {view.data(), view.extent(0), view.extent(1),
          Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(view.stride(0), view.stride(1))};
}

// One head of one sequence, [T, D], of a [B, T, H, D] view. Throws shape_error when there is no
// such batch entry or head.
template <class T>
eigen_matrix_map<T> head_map(const tensor_view<T, 4>& view, index batch, index head) {
  if (batch < 0 || batch >= view.extent(0)) {
    throw shape_error("heed: head_map: batch is " + std::to_string(batch) +
                      ", axis 0 (batch) has " + std::to_string(view.extent(0)));
  }
  if (head < 0 || head >= view.extent(2)) {
    throw shape_error("heed: head_map: head is " + std::to_string(head) + ", axis 2 (heads) has " +
                      std::to_string(view.extent(2)));
  }
  const auto part = view.slice(0, batch, batch + 1).slice(2, head, head + 1);
  return eigen_map(tensor_view<T, 2>(part.data(), {part.extent(1), part.extent(3)},
                                     {part.stride(1), part.stride(3)}));
}

}  // namespace heed::inline HEED_ABI
