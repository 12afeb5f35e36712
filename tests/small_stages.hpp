// Small stages that each use one part of the driver's contract, forward and backward, and the same
// for the reference.
#pragma once

#include <algorithm>
#include <vector>

#include "heed/attend_grad.hpp"
#include "heed/reference/attend.hpp"

namespace heed_test {

using heed::hook;
using heed::index;
using heed::panel;
using heed::place;
using heed::reverse_panel;
using heed::reference::read_entry;
using heed::reference::state;

// Every entry becomes next(h, i, j) of the old ones.
template <class T, class Next>
void replace(state<T>& s, const Next& next) {
  heed::reference::table<T> replaced(s.call.Hq, s.seq.T, s.seq.S);
  for (index h = 0; h < s.call.Hq; ++h)
    for (index i = 0; i < s.seq.T; ++i)
      for (index j = 0; j < s.seq.S; ++j) replaced(h, i, j) = next(h, i, j);
  s.entries = replaced;
}
template <class T>
T entry_or_zero(const state<T>& s, index h, index i, index j) {
  return i < 0 || j < 0 || j >= s.seq.S ? T(0) : read_entry(s, h, i, j);
}

// X_ij <- X_(i-rows)(j-columns): what rows above and older columns are for.
template <place Where>
struct from_above {
  static constexpr place where = Where;
  static constexpr hook hooks = hook::geometry | hook::forward | hook::backward;
  index up, older;

  heed::geometry geometry() const { return {up, older, 0, 1, heed::geometry::invisible::zero}; }
  template <class T, class Arch>
  void forward(const panel<T, Arch>& p) const {
    for (index g = 0; g < p.heads; ++g) {
      for (index r = p.end; r-- > p.begin;) {
        const bool there = p.row + r >= up;
        for (index c = p.first; c < p.last; ++c) {
          p.line(g, r)[c] = there ? p.line(g, r - up)[c] : T(0);
        }
      }
    }
  }
  // forward: dX_(i-rows) = dX_i
  template <class T, class Arch>
  void backward(const reverse_panel<T, Arch>& p) const {
    for (index g = 0; g < p.heads; ++g) {
      for (index r = std::max<index>(0, p.begin - up); r < p.end; ++r) {
        for (index c = p.first; c < p.last; ++c) {
          p.line(g, r)[c] = r + up < p.end ? p.line(g, r + up)[c] : T(0);
        }
      }
    }
  }
};
template <place Where, class T>
void apply_reference(const from_above<Where>& m, state<T>& s) {
  replace(s, [&](index h, index i, index j) { return entry_or_zero(s, h, i - m.up, j - m.older); });
}

// X_ij <- mean of X_i(j-older) .. X_i(j+newer): carries columns in both directions.
template <place Where>
struct average {
  static constexpr place where = Where;
  static constexpr hook hooks = hook::geometry | hook::plan | hook::rows | hook::forward |
                                hook::advance | hook::carries | hook::forward_carries |
                                hook::begin_backward | hook::backward | hook::retreat;
  index older, newer;

  heed::geometry geometry() const { return {0, older, newer, 1, heed::geometry::invisible::zero}; }

  template <class T>
  struct rows_type {
    index reads, count, heads;
    T* newer_columns;  // [heads][count][reads]: what the newer panel began with
    bool filled = false;
    T* older_columns = nullptr;  // the same in the reverse sweep: what the older panel ended with
    bool spilled = false;

    // line[from, to) and behind it, or before it, what is carried.
    template <class Each>
    void each_line(index begin, index end, index heads_of_panel, T* carried, Each each) const {
      for (index g = 0; g < heads_of_panel; ++g) {
        for (index r = begin; r < end; ++r) each(g, r, carried + (g * count + r) * reads);
      }
    }
    template <class Arch>
    void forward(const panel<T, Arch>& p) {
      each_line(p.begin, p.end, p.heads, newer_columns, [&](index g, index r, T* kept) {
        T* line = p.line(g, r) + p.first;
        const index n = p.last - p.first;
        std::vector<T> all(line, line + n);
        all.insert(all.end(), kept, kept + reads);
        for (index c = 0; c < reads; ++c) kept[c] = all[static_cast<std::size_t>(c)];
        for (index c = 0; c < n; ++c) {
          line[c] = 0;
          for (index i = 0; i <= reads; ++i) line[c] += all[static_cast<std::size_t>(c + i)];
          line[c] /= static_cast<T>(reads + 1);
        }
      });
      filled = true;
    }
    void advance(index, index) {
      if (!filled) std::fill(newer_columns, newer_columns + heads * count * reads, T(0));
      filled = false;
    }
    template <class Visit>
    void carries(Visit&& visit) {
      visit(newer_columns, heads * count * reads);
      visit(&filled, 1);
    }
    template <class Arch>
    void begin_backward(const heed::reverse_context<T, Arch>& c, const auto&) {
      older_columns = c.memory.template take<T>(heads * count * reads);
      std::fill(older_columns, older_columns + heads * count * reads, T(0));
      spilled = false;
    }
    // forward: dX_c = sum over i of dY_(c-i)
    template <class Arch>
    void backward(const reverse_panel<T, Arch>& p) {
      each_line(p.begin, p.end, p.heads, older_columns, [&](index g, index r, T* kept) {
        T* line = p.line(g, r) + p.first;
        const index n = p.last - p.first;
        std::vector<T> all(kept, kept + reads);
        all.insert(all.end(), line, line + n);
        for (index c = 0; c < reads; ++c) kept[c] = all[static_cast<std::size_t>(n + c)];
        for (index c = 0; c < n; ++c) {
          line[c] = 0;
          for (index i = 0; i <= reads; ++i)
            line[c] += all[static_cast<std::size_t>(reads + c - i)];
          line[c] /= static_cast<T>(reads + 1);
        }
      });
      spilled = true;
    }
    void retreat(index, index) {
      if (!spilled) std::fill(older_columns, older_columns + heads * count * reads, T(0));
      spilled = false;
    }
  };
  struct plan_type {
    index reads;
    template <class T, class Arch>
    auto rows(const heed::rows_context<T, Arch>& c) const {
      T* carry = c.memory.template take<T>(c.heads * c.count * reads);
      std::fill(carry, carry + c.heads * c.count * reads, T(0));
      return rows_type<T>{reads, c.count, c.heads, carry};
    }
  };
  template <class T, class Arch>
  auto plan(const heed::plan_context<T, Arch>&) const {
    return plan_type{older + newer};
  }
};
template <place Where, class T>
void apply_reference(const average<Where>& m, state<T>& s) {
  replace(s, [&](index h, index i, index j) {
    T sum = 0;
    for (index n = -m.older; n <= m.newer; ++n) sum += entry_or_zero(s, h, i, j + n);
    return sum / T(m.older + m.newer + 1);
  });
}

// Heads of a group of N change places: h takes what h + `by` had, round and round.
template <place Where, index N>
struct rotate_heads {
  static constexpr place where = Where;
  static constexpr hook hooks = hook::geometry | hook::forward | hook::backward;
  index by = 1;

  heed::geometry geometry() const { return {0, 0, 0, N, heed::geometry::invisible::zero}; }
  template <class T, class Arch>
  void forward(const panel<T, Arch>& p) const {
    turn(p, by);
  }
  // forward: the other way round
  template <class T, class Arch>
  void backward(const reverse_panel<T, Arch>& p) const {
    turn(p, N - by);
  }

 private:
  template <class T, class Arch>
  static void turn(const panel<T, Arch>& p, index step) {
    for (index g = 0; g < p.heads; g += N) {
      for (index r = p.begin; r < p.end; ++r) {
        for (index c = p.first; c < p.last; ++c) {
          T old[static_cast<std::size_t>(N)];
          for (index n = 0; n < N; ++n) old[n] = p.line(g + n, r)[c];
          for (index n = 0; n < N; ++n) p.line(g + n, r)[c] = old[(n + step) % N];
        }
      }
    }
  }
};
template <place Where, index N, class T>
void apply_reference(const rotate_heads<Where, N>& m, state<T>& s) {
  replace(s, [&](index h, index i, index j) {
    return read_entry(s, h / N * N + (h + m.by) % N, i, j);
  });
}

}  // namespace heed_test
