// Random calls of attention, the same ones on every machine: shapes, layouts, masks and values that
// float and double represent alike.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "heed/options.hpp"
#include "heed/problem.hpp"

namespace heed_test {

using heed::index;

// Numbers from a seed. The standard's distributions differ between libraries, these do not.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : bits_(seed * 0x9e3779b97f4a7c15U + 1) {}

  double uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Mean 0, variance 1, nothing beyond 6: a sum of twelve uniform numbers.
  double normal() {
    double sum = -6;
    for (int n = 0; n < 12; ++n) sum += uniform();
    return sum;
  }
  // low .. high, both included.
  index integer(index low, index high) {
    return low + static_cast<index>(bits_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double p) { return uniform() < p; }
  template <class T, std::size_t N>
  T pick(const std::array<T, N>& from) {
    return from[static_cast<std::size_t>(integer(0, static_cast<index>(N) - 1))];
  }

 private:
  std::mt19937_64 bits_;
};

// f(i0, i1, ...) for every index of a shape.
template <int Rank, class F, class... Index>
void for_each_index(const heed::shape<Rank>& extents, F&& f, Index... at) {
  if constexpr (sizeof...(Index) == Rank) {
    f(at...);
  } else {
    for (index i = 0; i < extents[sizeof...(Index)]; ++i)
      for_each_index<Rank>(extents, f, at..., i);
  }
}

enum class layout {
  contiguous,      // the last axis contiguous, in order
  heads_outside,   // axes 1 and 2 swapped in memory: [B, H, T, D] under a [B, T, H, D] view
  fused,           // a slice of a wider buffer: strides larger than the extents, an offset
  every_second,    // innermost stride 2
  repeated_batch,  // stride 0 along axis 0 (inputs only)
};

// One tensor twice, in float and double, with the same values and strides. What lies between its
// elements is NaN. Movable; views stay good.
template <int Rank>
class twin {
 public:
  twin() = default;
  twin(const heed::shape<Rank>& extents, layout how) : extents_(extents) {
    std::array<std::size_t, Rank> order{};  // slowest axis first
    for (std::size_t axis = 0; axis < Rank; ++axis) order[axis] = axis;
    if constexpr (Rank >= 3) {
      if (how == layout::heads_outside) std::swap(order[1], order[2]);
    }
    index step = how == layout::every_second ? 2 : 1;
    for (std::size_t n = Rank; n-- > 0;) {
      const std::size_t axis = order[n];
      strides_[axis] = step;
      step *= std::max<index>(1, extents[axis]) + (how == layout::fused && n > 0 ? 3 : 0);
    }
    if (how == layout::repeated_batch) strides_[0] = 0;
    offset_ = how == layout::fused ? 5 : 0;
    const auto size = static_cast<std::size_t>(step + offset_);
    floats_.assign(size, std::numeric_limits<float>::quiet_NaN());
    doubles_.assign(size, std::numeric_limits<double>::quiet_NaN());
  }

  const heed::shape<Rank>& extents() const { return extents_; }
  bool repeats() const { return strides_[0] == 0 && extents_[0] > 1; }

  template <class T>
  heed::tensor_view<T, Rank> view() {
    if constexpr (std::is_same_v<T, float>) {
      return {floats_.data() + offset_, extents_, strides_};
    } else {
      return {doubles_.data() + offset_, extents_, strides_};
    }
  }
  template <class T>
  heed::tensor_view<const T, Rank> read() const {
    return const_cast<twin*>(this)->view<T>();
  }

  // Element (at...) becomes x, rounded to float in both.
  template <class... Index>
  void set(double x, Index... at) {
    view<float>()(at...) = static_cast<float>(x);
    view<double>()(at...) = static_cast<double>(static_cast<float>(x));
  }

  // value() for every element.
  template <class F>
  void fill(F&& value) {
    for_each_index<Rank>(extents_, [&](auto... at) { set(value(), at...); });
  }

 private:
  heed::shape<Rank> extents_{}, strides_{};
  index offset_ = 0;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

enum class mask_kind {
  none,
  causal,
  top_left,
  window,         // newer keys, too
  causal_window,  // a window that ends at the query
  always_visible,
  padded,  // causal or not, key starts and lengths
  query_starts,
  packed,
  boolean_view,
};

// What a random problem may be.
struct random_limits {
  index longest = 40;             // T and S
  bool newer_keys = true;         // false: no query sees a key newer than itself
  bool short_queries = true;      // false: S = T
  bool values_like_keys = false;  // true: Dv = D
  index heads_multiple = 1;       // Hq is a multiple of this
};

// A call: tensors, extents and mask. Movable; views and lists stay good.
class random_problem {
 public:
  explicit random_problem(std::uint64_t seed, const random_limits& limits = {});

  // A parameter of these extents in a layout of its own; standard normal unless filled again.
  template <int Rank>
  twin<Rank> tensor(const heed::shape<Rank>& extents) {
    static constexpr std::array all{layout::contiguous,    layout::contiguous,
                                    layout::heads_outside, layout::fused,
                                    layout::every_second,  layout::repeated_batch};
    twin<Rank> t(extents, random.pick(all));
    t.fill([&] { return random.normal(); });
    return t;
  }

  // For messages.
  std::string text() const;

  random_source random;
  heed::problem call;
  mask_kind kind = mask_kind::none;
  heed::mask mask;
  twin<4> q, k, v;

 private:
  void draw_shape(const random_limits& limits);
  void draw_mask(const random_limits& limits);
  void draw_padding();
  void draw_starts();
  void draw_pieces(const random_limits& limits);
  void draw_view();
  void poison_padding();

  std::vector<std::int64_t> lengths_;
  std::vector<std::int32_t> starts_;
  std::unique_ptr<bool[]> shown_;
};

// Largest difference over the largest expected value, or over `at_least` where all are smaller.
// Equal infinities and NaN against NaN agree; otherwise what is not finite differs by infinity.
template <class T, class E, int Rank>
double relative_error(const heed::tensor_view<T, Rank>& found,
                      const heed::tensor_view<E, Rank>& expected, double at_least = 0) {
  double worst = 0, largest = at_least;
  for_each_index<Rank>(expected.extents(), [&](auto... at) {
    const auto f = static_cast<double>(found(at...)), e = static_cast<double>(expected(at...));
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
    if (f == e || (std::isnan(f) && std::isnan(e))) return;
    const double difference = std::abs(f - e);
    worst = std::isfinite(difference) ? std::max(worst, difference)
                                      : std::numeric_limits<double>::infinity();
  });
  return worst == 0 ? 0 : worst / largest;
}

// A causal call of one batch with normal tensors of several layouts.
random_problem causal_problem(std::uint64_t seed, const heed::problem& call);

}  // namespace heed_test
