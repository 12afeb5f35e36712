// Lists of small stages, each of which uses one part of the driver's contract, against plain loops.
#pragma once

#include <vector>

#include "catch.hpp"
#include "heed/attend.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/reference/attend.hpp"
#include "random_problem.hpp"
#include "small_stages.hpp"

namespace heed_test {

// X_ij <- X_ij + how many of X_ij, X_i(j+1) ... are positive: a count along the sweep, per row.
template <place Where>
struct count_positive {
  static constexpr place where = Where;
  static constexpr hook hooks = hook::geometry | hook::plan | hook::rows | hook::forward;

  heed::geometry geometry() const {
    return {0, 0, 0, 1,
            Where == place::probs ? heed::geometry::invisible::zero
                                  : heed::geometry::invisible::minus_infinity};
  }
  template <class T>
  struct rows_type {
    index count;
    T* positive;  // [heads][count]
    template <class Arch>
    void forward(const panel<T, Arch>& p) const {
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          for (index c = p.last; c-- > p.first;) {
            T& x = p.line(g, r)[c];
            if (x > 0) positive[g * count + r] += T(0.25);
            x += positive[g * count + r];
          }
        }
      }
    }
  };
  struct plan_type {
    template <class T, class Arch>
    auto rows(const heed::rows_context<T, Arch>& c) const {
      T* positive = c.memory.template take<T>(c.heads * c.count);
      std::fill(positive, positive + c.heads * c.count, T(0));
      return rows_type<T>{c.count, positive};
    }
  };
  template <class T, class Arch>
  auto plan(const heed::plan_context<T, Arch>&) const {
    return plan_type{};
  }
};
template <place Where, class T>
void apply_reference(const count_positive<Where>&, state<T>& s) {
  for (index h = 0; h < s.call.Hq; ++h) {
    for (index i = 0; i < s.seq.T; ++i) {
      T positive = 0;
      for (index j = s.seq.S; j-- > 0;) {
        if (s.visible(h, i, j) && s.entries(h, i, j) > 0) positive += T(0.25);
        s.entries(h, i, j) += positive;
      }
    }
  }
}

// Changes nothing, and counts what the driver says out of turn: the columns come newest to oldest
// without a gap, each announced, then seen, then left.
template <place Where>
struct witness {
  static constexpr place where = Where;
  static constexpr hook hooks =
      hook::plan | hook::rows | hook::enter | hook::forward | hook::advance;
  int* faults;
  int* panels;

  struct rows_type {
    int* faults;
    int* panels;
    index count, at = PTRDIFF_MAX, begin = 0, end = 0;
    bool entered = false;

    void say(bool good) const { *faults += good ? 0 : 1; }
    void enter(index key_begin, index key_end) {
      say(!entered && key_begin < key_end && (at == PTRDIFF_MAX || key_end == at));
      begin = key_begin;
      end = key_end;
      entered = true;
    }
    template <class T, class Arch>
    void forward(const panel<T, Arch>& p) {
      ++*panels;
      say(entered && p.column == begin && p.key(p.first) >= begin && p.key(p.last) <= end);
      say(p.begin < p.end && p.end <= count && p.origin <= p.begin && p.first <= p.last);
    }
    void advance(index key_begin, index key_end) {
      if (entered) say(key_begin == begin && key_end == end);
      say(at == PTRDIFF_MAX || key_end == at);
      at = key_begin;
      entered = false;
    }
  };
  struct plan_type {
    int* faults;
    int* panels;
    template <class T, class Arch>
    auto rows(const heed::rows_context<T, Arch>& c) const {
      return rows_type{faults, panels, c.count};
    }
  };
  template <class T, class Arch>
  auto plan(const heed::plan_context<T, Arch>&) const {
    return plan_type{faults, panels};
  }
};
template <place Where, class T>
void apply_reference(const witness<Where>&, state<T>&) {}

// A stage that reads far around it, switched off.
struct absent {
  static constexpr place where = place::probs;
  static constexpr hook hooks = hook::geometry | hook::active | hook::forward;
  bool active() const { return false; }
  heed::geometry geometry() const { return {7, 7, 7, 1, heed::geometry::invisible::zero}; }
  template <class T, class Arch>
  void forward(const panel<T, Arch>&) const {
    FAIL("forward of an inactive stage");
  }
};
template <class T>
void apply_reference(const absent&, state<T>& s) {
  s.entries = {};
}

template <class T>
std::vector<T> output(const heed::problem& p) {
  return std::vector<T>(static_cast<std::size_t>(p.B * p.T * p.Hq * p.Dv), T(7));
}

// Random problems and tunings: heed::attend and the reference agree.
template <class T, class... Stages>
void check_list(index heads, const Stages&... stages) {
  static constexpr std::array tunings{heed::tuning{3, 3}, heed::tuning{5, 3, 1},
                                      heed::tuning{4, 7, 4000}, heed::tuning{16, 64},
                                      heed::tuning{}};
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    random_problem x(seed, {.longest = seed % 8 == 0 ? 150 : 40, .heads_multiple = heads});
    const heed::problem& p = x.call;
    CAPTURE(seed, x.text());
    std::vector<double> expected = output<double>(p),
                        lse_expected(static_cast<std::size_t>(p.B * p.T * p.Hq));
    const heed::tensor_view<double, 4> e(expected.data(), {p.B, p.T, p.Hq, p.Dv});
    const heed::tensor_view<double, 3> el(lse_expected.data(), {p.B, p.T, p.Hq});
    heed::reference::attend<double>(x.q.template read<double>(), x.k.template read<double>(),
                                    x.v.template read<double>(), e, {.mask = x.mask, .lse = el},
                                    stages...);
    for (const heed::tuning& t : tunings) {
      CAPTURE(t.rows, t.panel, t.kept);
      std::vector<T> found = output<T>(p), lse_found(lse_expected.size());
      const heed::tensor_view<T, 4> f(found.data(), {p.B, p.T, p.Hq, p.Dv});
      const heed::tensor_view<T, 3> fl(lse_found.data(), {p.B, p.T, p.Hq});
      heed::attend(x.q.template read<T>(), x.k.template read<T>(), x.v.template read<T>(), f,
                   {.mask = x.mask, .lse = fl, .tuning = t}, stages...);
      const double tolerance = sizeof(T) == 8 ? 1e-12 : 2e-5;
      REQUIRE(relative_error(f, e, 0.1) <= tolerance);
      REQUIRE(relative_error(fl, el, 0.1) <= tolerance);
    }
  }
}

inline constexpr place logits = place::logits, probs = place::probs;

}  // namespace heed_test
