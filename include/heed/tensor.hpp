// Strided views: how every tensor reaches heed. A view owns nothing and is cheap to copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "heed/config.hpp"

namespace heed::inline HEED_ABI {

template <int Rank>
using shape = std::array<index, static_cast<std::size_t>(Rank)>;

namespace detail {

// What views of all types and ranks share.
[[noreturn]] inline void refuse_view(const std::string& why) {
  throw shape_error("heed: tensor_view: " + why);
}
[[noreturn]] inline void refuse_null(index size) {
  refuse_view("a null pointer to " + std::to_string(size) + " elements");
}
[[noreturn]] inline void refuse_span(index last, std::size_t size) {
  refuse_view("the shape reaches element " + std::to_string(last) + " of a span of " +
              std::to_string(size));
}
[[noreturn]] inline void refuse_slice(index begin, index end, int axis, bool exists, index extent) {
  throw shape_error("heed: tensor_view::slice: [" + std::to_string(begin) + ", " +
                    std::to_string(end) + ") does not lie in axis " + std::to_string(axis) +
                    (exists ? " of " + std::to_string(extent) : ""));
}

// No extent or stride is negative; element count and byte offsets fit in index.
constexpr void check_view(std::span<const index> extents, std::span<const index> strides,
                          std::size_t element_size) {
  constexpr index largest = PTRDIFF_MAX;
  bool any = true;
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    if (extents[axis] < 0) {
      refuse_view("axis " + std::to_string(axis) + " has negative extent " +
                  std::to_string(extents[axis]));
    }
    if (strides[axis] < 0) {
      refuse_view("axis " + std::to_string(axis) + " has negative stride " +
                  std::to_string(strides[axis]));
    }
    any = any && extents[axis] > 0;
  }
  if (!any) return;
  index count = 1, last = 0;
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    const index steps = extents[axis] - 1, stride = strides[axis];
    const index room = largest / static_cast<index>(element_size) - 1 - last;
    if (count > largest / extents[axis] || (stride > 0 && steps > room / stride)) {
      refuse_view("extent " + std::to_string(extents[axis]) + " with stride " +
                  std::to_string(stride) + " in axis " + std::to_string(axis) +
                  " goes beyond 64-bit sizes");
    }
    count *= extents[axis];
    last += steps * stride;
  }
}

}  // namespace detail

// A view of Rank axes over elements of type T (const T for inputs). Element (i0, i1, ...) lies at
// data + i0 * stride(0) + i1 * stride(1) + ...; strides count elements, are >= 0, and need no
// alignment or order: [B,T,H,D], [B,H,T,D] and slices of a fused buffer differ in strides only.
// Stride 0 repeats an input along an axis; outputs refuse it.
//
// Throws shape_error for a negative extent or stride, a null pointer to elements, a span that is
// too short, and a shape whose element count or byte offsets do not fit in 64 bits. Offsets of a
// view that exists therefore never overflow.
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
    detail::check_view(extents_, strides_, sizeof(T));
    if (data == nullptr && !empty()) detail::refuse_null(size());
  }

  // Over a span, which must hold every element that the shape and strides reach.
  constexpr tensor_view(std::span<T> elements, const shape<Rank>& extents)
      : tensor_view(elements, extents, row_major(extents)) {}
  constexpr tensor_view(std::span<T> elements, const shape<Rank>& extents,
                        const shape<Rank>& strides)
      : data_(elements.data()), extents_(extents), strides_(strides) {
    detail::check_view(extents_, strides_, sizeof(T));
    if (!empty() && static_cast<std::size_t>(last_offset()) >= elements.size()) {
      detail::refuse_span(last_offset(), elements.size());
    }
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
  // Where the last element lies, counted in elements from data(); 0 for an empty view.
  constexpr index last_offset() const noexcept {
    index last = 0;
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      if (extents_[axis] == 0) return 0;
      last += (extents_[axis] - 1) * strides_[axis];
    }
    return last;
  }

  template <class... Index>
  requires(sizeof...(Index) == Rank) constexpr T& operator()(Index... at) const noexcept {
    return data_[offset(at...)];
  }
  // Of an empty view, which may have no data and any strides: data(), whatever the indices.
  template <class... Index>
  requires(sizeof...(Index) == Rank) constexpr T* pointer(Index... at) const noexcept {
    return empty() ? data_ : data_ + offset(at...);
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
    const bool exists = axis >= 0 && axis < Rank;
    if (!exists || begin < 0 || end < begin || end > extent(axis)) {
      detail::refuse_slice(begin, end, axis, exists, exists ? extent(axis) : 0);
    }
    tensor_view part = *this;
    part.extents_[static_cast<std::size_t>(axis)] = end - begin;
    if (!part.empty()) part.data_ += begin * stride(axis);
    return part;
  }

 private:
  static constexpr index largest = PTRDIFF_MAX;

  template <class... Index>
  constexpr index offset(Index... at) const noexcept {
    index sum = 0;
    std::size_t axis = 0;
    ((sum += static_cast<index>(at) * strides_[axis++]), ...);
    return sum;
  }

  // An axis of extent 0 counts as 1, so that no stride becomes 0 by itself. A step that does not
  // fit stops growing; check_view then refuses the shape.
  static constexpr shape<Rank> row_major(const shape<Rank>& extents) noexcept {
    shape<Rank> s{};
    index step = 1;
    for (std::size_t axis = Rank; axis-- > 0;) {
      s[axis] = step;
      if (extents[axis] > 1) step = step > largest / extents[axis] ? largest : step * extents[axis];
    }
    return s;
  }

  T* data_ = nullptr;
  shape<Rank> extents_{};
  shape<Rank> strides_{};
};

}  // namespace heed::inline HEED_ABI
