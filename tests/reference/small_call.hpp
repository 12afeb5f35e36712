// A call in double whose arrays a test writes by hand.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "heed/reference/attend.hpp"
#include "random_problem.hpp"

namespace heed_test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// Everything starts as 0, outputs as NaN.
class small_call {
 public:
  small_call(index B, index T, index S, index Hq, index Hkv, index D, index Dv)
      : q(B, T, Hq, D), k(B, S, Hkv, D), v(B, S, Hkv, Dv), out(B, T, Hq, Dv), lse(1, B, T, Hq) {
    out.fill(nan_value);
    lse.fill(nan_value);
    options.lse = heed::tensor_view<double, 3>(lse.elements, {B, T, Hq});
  }
  static small_call random(std::uint64_t seed, index B, index T, index S, index Hq, index Hkv,
                           index D, index Dv) {
    small_call c(B, T, S, Hq, Hkv, D, Dv);
    random_source numbers(seed);
    for (array* a : {&c.q, &c.k, &c.v}) {
      for (double& x : a->elements) x = numbers.normal();
    }
    return c;
  }
  small_call(small_call&&) = default;  // a vector's elements stay where they are
  small_call(const small_call&) = delete;

  template <class... Mechanisms>
  small_call& run(const Mechanisms&... mechanisms) {
    heed::reference::attend<double>(q.view(), k.view(), v.view(), out.view(), options,
                                    mechanisms...);
    return *this;
  }

  struct array {
    array(index a, index b, index c, index d)
        : extents{a, b, c, d}, elements(static_cast<std::size_t>(a * b * c * d)) {}
    heed::tensor_view<double, 4> view() { return {std::span<double>(elements), extents}; }
    double& operator()(index a, index b, index c, index d) { return view()(a, b, c, d); }
    void fill(double x) { elements.assign(elements.size(), x); }

    heed::shape<4> extents;
    std::vector<double> elements;
  };
  array q, k, v, out, lse;  // lse as [1, B, T, Hq]
  heed::attend_options<double> options;
};

// The same within rounding; NaN and infinities as relative_error has them.
inline bool close(small_call::array& a, small_call::array& b, double tolerance = 1e-14) {
  return relative_error(a.view(), b.view()) <= tolerance;
}

inline std::vector<double> normals(std::uint64_t seed, index count) {
  random_source numbers(seed);
  std::vector<double> x(static_cast<std::size_t>(count));
  for (double& y : x) y = numbers.normal();
  return x;
}

}  // namespace heed_test
