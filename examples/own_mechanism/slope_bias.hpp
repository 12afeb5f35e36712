// A mechanism of one's own: a key loses `slope` for every token between it and the query.
//
//   L_ij <- L_ij - slope |p_i - j|
#pragma once

#include <cmath>

#include "heed/heed.hpp"
#include "heed/reference/attend.hpp"

struct slope_bias {
  // Where in the pipeline it acts, and which hooks it has: concepts.hpp lists both.
  static constexpr heed::place where = heed::place::logits;
  static constexpr heed::hook hooks = heed::hook::check | heed::hook::forward;

  double slope = 0.1;

  // Refuses, before anything is written, what would make no sense.
  void check(const heed::problem&) const {
    if (!(slope >= 0)) throw heed::shape_error("slope_bias: slope: is not 0 or more");
  }

  // The logits of some rows for a run of keys: add to each. Invisible ones may become anything.
  template <class T, class Arch>
  void forward(const heed::panel<T, Arch>& p) const {
    for (heed::index g = 0; g < p.heads; ++g) {
      for (heed::index r = p.begin; r < p.end; ++r) {
        T* line = p.line(g, r);
        for (heed::index c = p.first; c < p.last; ++c) {
          line[c] -= static_cast<T>(slope) * static_cast<T>(std::abs(p.position(r) - p.key(c)));
        }
      }
    }
  }
};

// The same for the reference, which keeps all logits of a sequence: heed::reference::attend takes
// the mechanism too, and checks it.
template <class T>
void apply_reference(const slope_bias& m, heed::reference::state<T>& s) {
  for (heed::index h = 0; h < s.call.Hq; ++h) {
    for (heed::index i = 0; i < s.seq.T; ++i) {
      for (heed::index j = 0; j < s.seq.S; ++j) {
        s.entries(h, i, j) -= T(m.slope) * static_cast<T>(std::abs(s.position(i) - j));
      }
    }
  }
}
