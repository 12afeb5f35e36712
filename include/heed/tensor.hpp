// Strided views: how every tensor reaches heed. A view owns nothing and is cheap to copy.
#pragma once

#include <array>
#include <span>
#include <string>
#include <type_traits>

#include "heed/config.hpp"

namespace heed::inline HEED_ABI {

template <int Rank>
using shape = std::array<index, static_cast<std::size_t>(Rank)>;

// A view of Rank axes over elements of type T (const T for inputs). Element (i0, i1, ...) lies at
// data + i0 * stride(0) + i1 * stride(1) + ...; strides count elements, are >= 0, and need no
// alignment or order: [B,T,H,D], [B,H,T,D] and slices of a fused buffer differ in strides only.
// Stride 0 repeats an input along an axis; outputs refuse it.
//
// Throws shape_error for a negative extent or stride, or a span that is too short.
template <class T, int Rank>
class tensor_view {
  static_assert(Rank >= 1 && Rank <= 4, "heed: a tensor_view has 1 to 4 axes");

 public:
  using element_type = T;
  using value_type = std::remove_const_t<T>;
  static constexpr int rank = Rank;

  constexpr tensor_view() noexcept = default;

  // Row-major: the last axis is contiguous.
  constexpr tensor_view(T* data, const shape<Rank>& extents)
      : tensor_view(data, extents, row_major(extents)) {}

  constexpr tensor_view(T* data, const shape<Rank>& extents, const shape<Rank>& strides)
      : data_(data), extents_(extents), strides_(strides) {
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      if (extents_[axis] < 0) {
        throw shape_error("heed: tensor_view: axis " + std::to_string(axis) +
                          " has negative extent " + std::to_string(extents_[axis]));
      }
      if (strides_[axis] < 0) {
        throw shape_error("heed: tensor_view: axis " + std::to_string(axis) +
                          " has negative stride " + std::to_string(strides_[axis]));
      }
    }
  }

  // Row-major over a span, which must hold every element of the shape.
  constexpr tensor_view(std::span<T> elements, const shape<Rank>& extents)
      : tensor_view(elements.data(), extents) {
    check_span(elements.size());
  }
  constexpr tensor_view(std::span<T> elements, const shape<Rank>& extents,
                        const shape<Rank>& strides)
      : tensor_view(elements.data(), extents, strides) {
    check_span(elements.size());
  }

  // A view of T reads as a view of const T.
  template <class Other>
  requires(std::is_const_v<T>&& std::is_same_v<Other, value_type>) constexpr tensor_view(
      const tensor_view<Other, Rank>& other) noexcept
      : data_(other.data()), extents_(other.extents()), strides_(other.strides()) {}

  constexpr T* data() const noexcept { return data_; }
  constexpr const shape<Rank>& extents() const noexcept { return extents_; }
  constexpr const shape<Rank>& strides() const noexcept { return strides_; }
  constexpr index extent(int axis) const noexcept {
    return extents_[static_cast<std::size_t>(axis)];
  }
  constexpr index stride(int axis) const noexcept {
    return strides_[static_cast<std::size_t>(axis)];
  }
  constexpr index size() const noexcept {
    index n = 1;
    for (const index e : extents_) n *= e;
    return n;
  }
  constexpr bool empty() const noexcept { return size() == 0; }

  template <class... Index>
  requires(sizeof...(Index) == Rank) constexpr T& operator()(Index... at) const noexcept {
    return *pointer(at...);
  }
  template <class... Index>
  requires(sizeof...(Index) == Rank) constexpr T* pointer(Index... at) const noexcept {
    index offset = 0;
    std::size_t axis = 0;
    ((offset += static_cast<index>(at) * strides_[axis++]), ...);
    return data_ + offset;
  }

  // The same elements with the axes in another order: permute({0, 2, 1, 3}) makes [B,T,H,D] of
  // [B,H,T,D].
  constexpr tensor_view permute(
      const std::array<int, static_cast<std::size_t>(Rank)>& order) const {
    shape<Rank> e{}, s{};
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      const auto from = static_cast<std::size_t>(order[axis]);
      if (from >= Rank)
        throw shape_error("heed: tensor_view::permute: no axis " + std::to_string(order[axis]));
      for (std::size_t other = 0; other < axis; ++other) {
        if (order[other] == order[axis]) {
          throw shape_error("heed: tensor_view::permute: axis " + std::to_string(order[axis]) +
                            " is named twice");
        }
      }
      e[axis] = extents_[from];
      s[axis] = strides_[from];
    }
    return tensor_view(data_, e, s);
  }

  // Indices [begin, end) of one axis.
  constexpr tensor_view slice(int axis, index begin, index end) const {
    if (axis < 0 || axis >= Rank || begin < 0 || end < begin || end > extent(axis)) {
      throw shape_error("heed: tensor_view::slice: [" + std::to_string(begin) + ", " +
                        std::to_string(end) + ") does not lie in axis " + std::to_string(axis));
    }
    tensor_view part = *this;
    part.data_ += begin == end ? 0 : begin * stride(axis);
    part.extents_[static_cast<std::size_t>(axis)] = end - begin;
    return part;
  }

 private:
  static constexpr shape<Rank> row_major(const shape<Rank>& extents) noexcept {
    shape<Rank> s{};
    index step = 1;
    for (std::size_t axis = Rank; axis-- > 0;) {
      s[axis] = step;
      step *= extents[axis];
    }
    return s;
  }

  constexpr void check_span(std::size_t length) const {
    if (empty()) return;
    index last = 0;
    for (std::size_t axis = 0; axis < Rank; ++axis) last += (extents_[axis] - 1) * strides_[axis];
    if (static_cast<std::size_t>(last) >= length) {
      throw shape_error("heed: tensor_view: the shape reaches element " + std::to_string(last) +
                        " of a span of " + std::to_string(length));
    }
  }

  T* data_ = nullptr;
  shape<Rank> extents_{};
  shape<Rank> strides_{};
};

}  // namespace heed::inline HEED_ABI
