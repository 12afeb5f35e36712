// The call itself, in one element type with one list of mechanisms. Included only where a kind of
// case is built, so that each kind compiles on its own.
#pragma once

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <limits>
#include <vector>

#include "heed/attend.hpp"
#include "heed/parallel.hpp"
#include "run.hpp"

namespace attend_program {

// The product of extents. An extent of 0 elsewhere in the case lets a file claim any other extent,
// so what is allocated for is checked. Throws case_error.
inline std::size_t elements(const attend_case& c, std::initializer_list<heed::index> extents) {
  heed::index count = 1;
  for (const heed::index e : extents) {
    if (e > 1 && count > std::numeric_limits<heed::index>::max() / 16 / e) {
      throw case_error((c.folder() / "case.txt").string() + ": the output is too large to hold");
    }
    count *= e;
  }
  return static_cast<std::size_t>(count);
}

// f(T{}) with the element type of the settings.
template <class F>
outcome for_type(heed::io::dtype type, F f) {
  return type == heed::io::dtype::f64 ? f(double{}) : f(float{});
}

// Reads q, k and v, refuses what the case asks for beyond what was read by now, and attends.
template <class T, class... Mechanisms>
outcome attend(const attend_case& c, const settings& s, const Mechanisms&... mechanisms) {
  const heed::problem p = c.problem();
  const auto q = c.tensor<T>("q", {p.B, p.T, p.Hq, p.D});
  const auto k = c.tensor<T>("k", {p.B, p.S, p.Hkv, p.D});
  const auto v = c.tensor<T>("v", {p.B, p.S, p.Hkv, p.Dv});
  const heed::mask mask = c.mask();
  c.check_all_read();

  std::vector<T> out(elements(c, {p.B, p.T, p.Hq, p.Dv}));
  std::vector<T> lse(elements(c, {p.B, p.T, p.Hq}));
  heed::thread_pool threads(s.threads);
  heed::workspace scratch;
  const heed::attend_options<T> options = {.mask = mask,
                                           .scale = p.scale,
                                           .lse = {std::span<T>(lse), {p.B, p.T, p.Hq}},
                                           .executor = threads,
                                           .workspace = &scratch};
  const heed::tensor_view<T, 4> result(std::span<T>(out), {p.B, p.T, p.Hq, p.Dv});
  const auto once = [&] {
    const auto start = std::chrono::steady_clock::now();
    heed::attend(q.template view<T, 4>(), k.template view<T, 4>(), v.template view<T, 4>(), result,
                 options, mechanisms...);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };

  // Small cases are over before a clock says much: call again for a while, and take the median.
  std::vector<double> seconds;
  double total = 0;
  do {
    seconds.push_back(once());
    total += seconds.back();
  } while (total < 0.02 && seconds.size() < 200);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());

  outcome o;
  o.problem = p;
  o.out = heed::io::npy_array("out.npy", {p.B, p.T, p.Hq, p.Dv}, std::move(out));
  o.lse = heed::io::npy_array("lse.npy", {p.B, p.T, p.Hq}, std::move(lse));
  o.seconds = *middle;
  o.calls = static_cast<int>(seconds.size());
  o.flops = 2 * static_cast<double>(p.D + p.Dv) * visible_pairs(p, mask);
  return o;
}

}  // namespace attend_program
