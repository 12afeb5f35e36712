// Logit soft-cap.
//
//   L_ij <- cap tanh(L_ij / cap)
//
// on logits that are already scaled; a logit of -inf stays -inf, so that no cap brings back what a
// bias or a gate has hidden. Cost: one tanh per score.
// Gemma Team, Gemma 2, arXiv 2408.00118.
#pragma once

#include <cmath>
#include <span>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/math.hpp"
#include "heed/kernel/panel.hpp"
#include "heed/kernel/reverse.hpp"

namespace heed::inline HEED_ABI {

struct softcap {
  static constexpr place where = place::logits;
  static constexpr hook hooks =
      hook::check | hook::forward | hook::ceiling | hook::backward | hook::keeps_output;

  double cap = 30;

  // Throws shape_error unless cap > 0.
  void check(const problem&) const {
    if (!(cap > 0)) {
      throw shape_error("heed: softcap: cap: is " + std::to_string(cap) + ", expected above 0");
    }
  }

  // The function grows with L; its value is raised by the rounding of tanh.
  void ceiling(index, index, index, std::span<double> bounds) const {
    for (double& b : bounds) b = cap * (std::tanh(b / cap) + 1e-14);
  }

  // L <- cap tanh(L / cap)
  template <class T, class Arch>
  void forward(const panel<T, Arch>& p) const {
    using namespace kernel;
    constexpr T infinity = std::numeric_limits<T>::infinity();
    const vec<T, Arch> high(static_cast<T>(cap)), inverse(static_cast<T>(1 / cap));
    for (index g = 0; g < p.heads; ++g) {
      for (index r = p.begin; r < p.end; ++r) {
        T* line = p.line(g, r);
        for (index c = p.first; c < p.last; c += width<T, Arch>) {
          const vec<T, Arch> x = load_vec<Arch>(line + c);
          store_vec<Arch>(line + c, xsimd::select(x == vec<T, Arch>(-infinity), x,
                                                  high * kernel::tanh<Arch>(x * inverse)));
        }
      }
    }
  }
  // forward: dL <- dL (1 - tanh^2); tanh is what was put out, over cap.
  template <class T, class Arch>
  void backward(const reverse_panel<T, Arch>& p) const {
    using namespace kernel;
    constexpr T infinity = std::numeric_limits<T>::infinity();
    const vec<T, Arch> one(T(1)), inverse(static_cast<T>(1 / cap));
    for (index g = 0; g < p.heads; ++g) {
      for (index r = p.begin; r < p.end; ++r) {
        T* line = p.line(g, r);
        const T* kept = p.kept_line(g, r);
        for (index c = p.first; c < p.last; c += width<T, Arch>) {
          const vec<T, Arch> y = load_vec<Arch>(kept + c), t = y * inverse;
          const vec<T, Arch> dl = load_vec<Arch>(line + c) * xsimd::fnma(t, t, one);
          store_vec<Arch>(line + c,
                          xsimd::select(y == vec<T, Arch>(-infinity), vec<T, Arch>(T(0)), dl));
        }
      }
    }
  }
};

}  // namespace heed::inline HEED_ABI
