// Whether strided views share memory. Exact: interleaved slices of one buffer do not, and a shared
// element is always found.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>

#include "heed/tensor.hpp"

namespace heed::inline HEED_ABI {

// The memory of a view without its types: what the tests below look at.
struct footprint {
  std::uintptr_t address = 0;
  std::uint64_t element_size = 1;
  int rank = 0;
  std::array<index, 4> extents{}, strides{};  // strides count elements
  bool empty = true;

  footprint() = default;
  template <class T, int Rank>
  footprint(const tensor_view<T, Rank>& view)
      : address(reinterpret_cast<std::uintptr_t>(view.data())),
        element_size(sizeof(T)),
        rank(Rank),
        empty(view.empty()) {
    for (int axis = 0; axis < Rank; ++axis) {
      extents[static_cast<std::size_t>(axis)] = view.extent(axis);
      strides[static_cast<std::size_t>(axis)] = view.stride(axis);
    }
  }

  std::uint64_t steps(int axis) const {
    return static_cast<std::uint64_t>(extents[static_cast<std::size_t>(axis)]) - 1;
  }
  std::uint64_t stride(int axis) const {
    return static_cast<std::uint64_t>(strides[static_cast<std::size_t>(axis)]);
  }
  // From the first element to the last, in elements.
  std::uint64_t last() const {
    std::uint64_t sum = 0;
    for (int axis = 0; axis < rank; ++axis) sum += steps(axis) * stride(axis);
    return sum;
  }
};

namespace detail {

// Can x_0 step_0 + x_1 step_1 + ... be a given number, with 0 <= x_k <= most_k? Two views share a
// byte when such a sum, over the axes of both, is the distance between them. Deciding it is
// NP-hard in general; for the strides that tensors have, terms melt into one another until one or
// two are left. The sum of all step_k most_k must fit in 64 bits.
class bounded_sum {
 public:
  // A search that has looked at this many partial sums (a third of a second) gives up and answers
  // yes. Tensors laid out in memory need a few dozen.
  static constexpr std::int64_t patience = 5'000'000;

  void add(std::uint64_t step, std::uint64_t most) {
    if (step == 0 || most == 0) return;
    std::size_t at = count_++;
    for (; at > 0 && terms_[at - 1].step > step; --at) terms_[at] = terms_[at - 1];
    terms_[at] = {step, most};
  }

  bool reaches(std::uint64_t target) {
    melt();
    std::uint64_t sum = 0, divisor = 0;
    for (std::size_t k = 0; k < count_; ++k) {  // ascending steps: what terms 0..k can do
      term& t = terms_[k];
      t.sum_below = sum;
      t.divisor_below = divisor;
      sum += t.step * t.most;
      divisor = std::gcd(divisor, t.step);
      t.modulus = k == 0 ? 1 : t.divisor_below / divisor;
      t.inverse = inverse(t.step / divisor, t.modulus);
    }
    left_ = patience;
    return search(count_, target, sum, divisor);
  }

 private:
  struct term {
    std::uint64_t step = 0, most = 0;
    std::uint64_t sum_below = 0, divisor_below = 0;  // of the terms with smaller steps
    std::uint64_t modulus = 1, inverse = 0;          // x is fixed modulo this
  };

  // a x + (m a) y with x reaching m - 1 at least takes every multiple of a: one term.
  void melt() {
    std::size_t kept = 0;
    for (std::size_t k = 0; k < count_; ++k) {
      std::size_t into = 0;
      for (; into < kept; ++into) {
        const std::uint64_t ratio = terms_[k].step / terms_[into].step;
        if (terms_[k].step % terms_[into].step == 0 && terms_[into].most >= ratio - 1) {
          terms_[into].most += ratio * terms_[k].most;
          break;
        }
      }
      if (into == kept) terms_[kept++] = terms_[k];
    }
    count_ = kept;
  }

  // Terms [0, count) must make target. The largest step goes first: what the others can add leaves
  // it a narrow range, and their common divisor fixes its remainder.
  bool search(std::size_t count, std::uint64_t target, std::uint64_t sum, std::uint64_t divisor) {
    if (target > sum) return false;
    if (target == 0) return true;
    if (target % divisor != 0) return false;
    if (count == 1) return true;
    if (--left_ < 0) return true;
    const term& t = terms_[count - 1];
    const std::uint64_t high = target / t.step < t.most ? target / t.step : t.most;
    std::uint64_t low = 0;
    if (target > t.sum_below) low = (target - t.sum_below - 1) / t.step + 1;
    const std::uint64_t residue = multiply(target / divisor % t.modulus, t.inverse, t.modulus);
    const std::uint64_t ahead = (residue + (t.modulus - low % t.modulus)) % t.modulus;
    if (low > high || ahead > high - low) return false;
    for (std::uint64_t x = low + ahead;; x += t.modulus) {
      if (search(count - 1, target - x * t.step, t.sum_below, t.divisor_below)) return true;
      if (t.modulus > high - x) return false;
    }
  }

  // a b mod m for a, b < m < 2^63, without a 128-bit type.
  static std::uint64_t multiply(std::uint64_t a, std::uint64_t b, std::uint64_t m) {
    if (m <= UINT32_MAX) return a * b % m;
    std::uint64_t product = 0;
    for (; b != 0; b >>= 1) {
      if ((b & 1) != 0) product = (product + a) % m;
      a = (a + a) % m;
    }
    return product;
  }

  // The inverse of a modulo m, for a and m without common divisor; 0 for m = 1.
  static std::uint64_t inverse(std::uint64_t a, std::uint64_t m) {
    std::int64_t r0 = static_cast<std::int64_t>(m), r1 = static_cast<std::int64_t>(a % m);
    std::int64_t s0 = 0, s1 = 1;
    while (r1 != 0) {
      const std::int64_t quotient = r0 / r1;
      r0 = std::exchange(r1, r0 - quotient * r1);
      s0 = std::exchange(s1, s0 - quotient * s1);
    }
    return static_cast<std::uint64_t>(s0 < 0 ? s0 + static_cast<std::int64_t>(m) : s0) % m;
  }

  std::array<term, 9> terms_{};
  std::size_t count_ = 0;
  std::int64_t left_ = patience;
};

}  // namespace detail

// True when some byte belongs to an element of a and to an element of b. Element types, ranks and
// strides may differ. Never false for views that share a byte; true for views that do not only if
// a search over millions of partial sums found no answer, which takes strides made for it.
inline bool views_overlap(const footprint& a, const footprint& b) {
  if (a.empty || b.empty) return false;
  const std::uint64_t a_bytes = (a.last() + 1) * a.element_size;
  const std::uint64_t b_bytes = (b.last() + 1) * b.element_size;
  const bool a_first = a.address <= b.address;
  const std::uint64_t apart = a_first ? b.address - a.address : a.address - b.address;
  if (apart >= (a_first ? a_bytes : b_bytes)) return false;

  // Counted from a's first byte and backwards from b's last one, all steps are positive:
  // sum i a_stride + byte of a + sum j b_stride + byte of b = from a's first to b's last byte.
  // Where both consist of whole elements of one grid, elements are counted instead of bytes.
  const bool one_grid = a.element_size == b.element_size && apart % a.element_size == 0;
  const std::uint64_t unit = one_grid ? a.element_size : 1;
  detail::bounded_sum sum;
  for (const footprint* view : {&a, &b}) {
    for (int axis = 0; axis < view->rank; ++axis) {
      sum.add(view->stride(axis) * (view->element_size / unit), view->steps(axis));
    }
  }
  if (!one_grid) sum.add(1, a.element_size - 1 + b.element_size - 1);
  const std::uint64_t b_end = (b_bytes - (one_grid ? b.element_size : 1)) / unit;
  return sum.reaches(a_first ? b_end + apart / unit : b_end - apart / unit);
}

template <class A, int RankA, class B, int RankB>
bool views_overlap(const tensor_view<A, RankA>& a, const tensor_view<B, RankB>& b) {
  return views_overlap(footprint(a), footprint(b));
}

// True when two different indices of the view name one element: an axis of stride 0 with more than
// one element, or strides that meet. Exact as views_overlap is.
inline bool overlaps_itself(const footprint& view) {
  if (view.empty) return false;
  // The difference of two such indices makes 0 = sum d_k stride_k, |d_k| <= steps_k, and its first
  // non-zero d can be taken as positive. With y_m = d_m + steps_m for the axes after it:
  // (d_k - 1) stride_k + sum y_m stride_m = sum steps_m stride_m - stride_k.
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.steps(axis) == 0) continue;
    if (view.stride(axis) == 0) return true;
    detail::bounded_sum sum;
    std::uint64_t later = 0;
    sum.add(view.stride(axis), view.steps(axis) - 1);
    for (int other = axis + 1; other < view.rank; ++other) {
      sum.add(view.stride(other), 2 * view.steps(other));
      later += view.stride(other) * view.steps(other);
    }
    if (later >= view.stride(axis) && sum.reaches(later - view.stride(axis))) return true;
  }
  return false;
}

template <class T, int Rank>
bool overlaps_itself(const tensor_view<T, Rank>& view) {
  return overlaps_itself(footprint(view));
}

// A view and the name that messages call it by.
struct named_view {
  const char* name;
  footprint memory;
};

// What every call demands of an output: each index its own element, none shared with another view
// of the call. Views without elements, such as an lse that was not asked for, pass.
//
//   check_output("attend", {"out", out}, {{"q", q}, {"k", k}, {"v", v}});
//
// Throws shape_error that names the call, the output, and the axis or the other view.
inline void check_output(const char* call, const named_view& output,
                         std::initializer_list<named_view> others) {
  const footprint& memory = output.memory;
  if (memory.empty) return;
  const auto refuse = [&](const std::string& why) {
    throw shape_error(std::string("heed: ") + call + ": " + output.name + why);
  };
  for (int axis = 0; axis < memory.rank; ++axis) {
    if (memory.stride(axis) == 0 && memory.steps(axis) > 0) {
      refuse(": axis " + std::to_string(axis) + " has stride 0 over " +
             std::to_string(memory.steps(axis) + 1) +
             " elements; an output needs a place for each");
    }
  }
  if (overlaps_itself(memory)) refuse(": its strides put two elements in one place");
  for (const named_view& other : others) {
    if (views_overlap(memory, other.memory)) {
      refuse(std::string(" shares elements with ") + other.name +
             "; an output needs memory of its own");
    }
  }
}

}  // namespace heed::inline HEED_ABI
