// Random problems for lists of stages: heed::attend against the reference.
#pragma once

#include <array>
#include <vector>

#include "catch.hpp"
#include "heed/attend.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/reference/attend.hpp"
#include "random_problem.hpp"

namespace heed_test {

// Output and log-sum-exp of one call.
template <class T>
struct call_result {
  explicit call_result(const heed::problem& p)
      : out_(static_cast<std::size_t>(p.B * p.T * p.Hq * p.Dv), T(7)),
        lse_(static_cast<std::size_t>(p.B * p.T * p.Hq), T(7)),
        out(out_.data(), {p.B, p.T, p.Hq, p.Dv}),
        lse(lse_.data(), {p.B, p.T, p.Hq}) {}

 private:
  std::vector<T> out_, lse_;

 public:
  heed::tensor_view<T, 4> out;
  heed::tensor_view<T, 3> lse;
};

// heed::attend in T, with a few tunings, against the reference in double. Stages hold views of
// double; kernels read them in either type.
template <class T, class... Stages>
void check_against_reference(random_problem& x, const Stages&... stages) {
  static constexpr std::array tunings{heed::tuning{3, 3, 1}, heed::tuning{5, 3, 6000},
                                      heed::tuning{16, 64}, heed::tuning{}};
  call_result<double> expected(x.call);
  heed::reference::attend<double>(x.q.read<double>(), x.k.read<double>(), x.v.read<double>(),
                                  expected.out, {.mask = x.mask, .lse = expected.lse}, stages...);
  for (const heed::tuning& t : tunings) {
    CAPTURE(x.text(), t.rows, t.panel, t.kept);
    call_result<T> found(x.call);
    heed::attend(x.q.read<T>(), x.k.read<T>(), x.v.read<T>(), found.out,
                 {.mask = x.mask, .lse = found.lse, .tuning = t}, stages...);
    REQUIRE(relative_error(found.out, expected.out, 0.1) <= (sizeof(T) == 8 ? 1e-12 : 3e-5));
    REQUIRE(relative_error(found.lse, expected.lse, 0.1) <= (sizeof(T) == 8 ? 1e-12 : 3e-5));
  }
}

}  // namespace heed_test
