// attend held against the reference, on one call.
#pragma once

#include <string>

#include "catch.hpp"
#include "heed/attend.hpp"
#include "heed/reference/attend.hpp"
#include "random_problem.hpp"

namespace heed_test {

// Sizes down to 3, so that small problems have many blocks and panels, and room for the logits of
// all, none or some of them.
inline constexpr std::array<heed::tuning, 5> all_tunings{
    heed::tuning{}, heed::tuning{3, 3}, heed::tuning{5, 7, 1}, heed::tuning{16, 64},
    heed::tuning{13, 16, 20000}};

// How far float and double may be from the double reference, relative to the largest value.
template <class T>
inline constexpr double tolerance = sizeof(T) == 4 ? 4e-6 : 1e-13;

// Fails unless out and lse of attend in T are those of the reference in double. make(type) returns
// a tuple of mechanisms whose tensors have the element type of `type`.
template <class T, class Make>
void check_against_reference(const random_problem& p, const heed::tuning& sizes, const Make& make,
                             double scale_of_tolerance = 1) {
  const heed::shape<4> out_shape{p.call.B, p.call.T, p.call.Hq, p.call.Dv};
  const heed::shape<3> lse_shape{p.call.B, p.call.T, p.call.Hq};
  twin<4> out(out_shape, layout::fused), expected(out_shape, layout::contiguous);
  twin<3> lse(lse_shape, layout::every_second), expected_lse(lse_shape, layout::contiguous);
  std::apply(
      [&](const auto&... mechanisms) {
        heed::attend(p.q.read<T>(), p.k.read<T>(), p.v.read<T>(), out.view<T>(),
                     {.mask = p.mask, .lse = lse.view<T>(), .tuning = sizes}, mechanisms...);
      },
      make(T()));
  std::apply(
      [&](const auto&... mechanisms) {
        heed::reference::attend(
            p.q.read<double>(), p.k.read<double>(), p.v.read<double>(), expected.view<double>(),
            {.mask = p.mask, .lse = expected_lse.view<double>()}, mechanisms...);
      },
      make(double()));
  INFO(p.text() << " rows " << sizes.rows << " panel " << sizes.panel);
  const double allowed = tolerance<T> * scale_of_tolerance;
  CHECK(relative_error(out.view<T>(), expected.view<double>(), 0.1) <= allowed);
  CHECK(relative_error(lse.view<T>(), expected_lse.view<double>(), 1) <= allowed);
}

}  // namespace heed_test
