// Shape checks of a public call, and the sequences that a call consists of. Everything here runs
// once per call, before anything is written.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <type_traits>

#include "heed/options.hpp"
#include "heed/overlap.hpp"
#include "heed/problem.hpp"

namespace heed::inline HEED_ABI {

// What a check expects of one axis: its meaning in words, its extent, and whether extent 1, which
// repeats along the axis, will do as well.
struct expected_axis {
  const char* meaning;
  index extent;
  bool or_one = false;
};

// Throws shape_error("heed: fox: log_f: axis 1 (keys) is 7, expected 8").
[[noreturn]] inline void throw_axis_error(const std::string& who, const std::string& argument,
                                          int axis, const std::string& meaning, index found,
                                          const std::string& expected) {
  throw shape_error("heed: " + who + ": " + argument + ": axis " + std::to_string(axis) + " (" +
                    meaning + ") is " + std::to_string(found) + ", expected " + expected);
}

inline void check_axes(const char* who, const char* argument, std::span<const index> extents,
                       std::span<const expected_axis> axes) {
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    const expected_axis& e = axes[axis];
    const index found = extents[axis];
    if (found == e.extent || (e.or_one && found == 1)) continue;
    throw_axis_error(who, argument, static_cast<int>(axis), e.meaning, found,
                     (e.or_one && e.extent != 1 ? "1 or " : "") + std::to_string(e.extent));
  }
}
// Throws shape_error for the first axis of view that does not have the extent expected.
template <class T, int Rank>
void check_extents(const char* who, const char* argument, const tensor_view<T, Rank>& view,
                   const std::array<expected_axis, static_cast<std::size_t>(Rank)>& axes) {
  check_axes(who, argument, view.extents(), axes);
}

namespace detail {

// `why` says what there must be an entry for.
inline void check_list(const char* argument, const index_list& list, index expected,
                       const char* why) {
  if (list.given() && list.size() != expected) {
    throw shape_error(std::string("heed: mask: ") + argument + ": has length " +
                      std::to_string(list.size()) + ", expected " + std::to_string(expected) +
                      " (" + why + ")");
  }
}

inline void check_list_range(const char* argument, const index_list& list, index last) {
  for (index n = 0; n < list.size(); ++n) {
    if (list[n] < 0 || list[n] > last) {
      throw shape_error(std::string("heed: mask: ") + argument + ": entry " + std::to_string(n) +
                        " is " + std::to_string(list[n]) + ", expected 0 to " +
                        std::to_string(last) + " (keys)");
    }
  }
}

inline void check_cumulative(const char* argument, const index_list& list, const char* meaning,
                             index total) {
  const std::string name = std::string("heed: mask: ") + argument;
  if (list.size() < 1) throw shape_error(name + ": is empty, expected sequences + 1 entries");
  if (list[0] != 0) {
    throw shape_error(name + ": entry 0 is " + std::to_string(list[0]) + ", expected 0");
  }
  for (index n = 1; n < list.size(); ++n) {
    if (list[n] < list[n - 1]) {
      throw shape_error(name + ": entry " + std::to_string(n) + " is " + std::to_string(list[n]) +
                        ", less than the entry before it, " + std::to_string(list[n - 1]));
    }
  }
  if (list[list.size() - 1] != total) {
    throw shape_error(name + ": ends at " + std::to_string(list[list.size() - 1]) + ", expected " +
                      std::to_string(total) + " (" + meaning + ")");
  }
}

}  // namespace detail

// Throws shape_error when the lists or the boolean view of a mask do not fit the call.
inline void check_mask(const problem& p, const mask& m) {
  if (m.cu_q.given() != m.cu_k.given()) {
    throw shape_error("heed: mask: packed: cu_queries and cu_keys are only given together");
  }
  if (m.cu_q.given()) {
    if (m.key_length.given() || m.key_start.given() || m.query_start.given()) {
      throw shape_error(
          "heed: mask: packed: cannot be combined with key_lengths, key_starts or query_starts");
    }
    if (p.B != 1) throw_axis_error("mask", "packed: q", 0, "batch", p.B, "1");
    detail::check_cumulative("cu_queries", m.cu_q, "queries", p.T);
    detail::check_cumulative("cu_keys", m.cu_k, "keys", p.S);
    detail::check_list("cu_keys", m.cu_k, m.cu_q.size(), "as cu_queries");
  }
  detail::check_list("key_lengths", m.key_length, p.B, "one for each sequence");
  detail::check_list("key_starts", m.key_start, p.B, "one for each sequence");
  detail::check_list("query_starts", m.query_start, p.B, "one for each sequence");
  for (index n = 0; n < m.query_start.size(); ++n) {
    if (m.query_start[n] < -mask::unlimited || m.query_start[n] > mask::unlimited) {
      throw shape_error("heed: mask: query_starts: entry " + std::to_string(n) + " is " +
                        std::to_string(m.query_start[n]) + ", beyond what positions can be");
    }
  }
  detail::check_list_range("key_lengths", m.key_length, p.S);
  detail::check_list_range("key_starts", m.key_start, p.S);
  if (m.shown.data() != nullptr) {
    check_extents("mask", "visible", m.shown,
                  {{{"batch", p.B, true},
                    {"query heads", p.Hq, true},
                    {"queries", p.T, true},
                    {"keys", p.S, true}}});
  }
}

// True when no query can see a key newer than itself: a causal mask, or a window without keys to
// the right. First keys that are always visible may be newer than an early query.
constexpr bool hides_newer_keys(const mask& m) noexcept {
  return m.is_causal || (m.right == 0 && m.first_keys == 0);
}

// Throws shape_error for a mechanism that is defined for keys not newer than the query only.
inline void check_hides_newer_keys(const char* who, const mask& m) {
  if (hides_newer_keys(m)) return;
  throw shape_error(
      std::string("heed: ") + who +
      ": the mask shows keys newer than the query, as full(), the default, does; this "
      "mechanism is not defined for them. Expected causal(), or window(left, 0) "
      "without always_visible");
}

// The extents of a call: q [B, T, Hq, D], k [B, S, Hkv, D], v [B, S, Hkv, Dv],
// out [B, T, Hq, Dv], options.lse [B, T, Hq] or no view.
//
// Throws shape_error naming argument, axis and both extents when they do not fit together.
template <class T>
problem make_problem(const tensor_view<const T, 4>& q, const tensor_view<const T, 4>& k,
                     const tensor_view<const T, 4>& v, const tensor_view<T, 4>& out,
                     const attend_options<T>& options) {
  problem p;
  p.B = q.extent(0);
  p.T = q.extent(1);
  p.Hq = q.extent(2);
  p.D = q.extent(3);
  p.S = k.extent(1);
  p.Hkv = k.extent(2);
  p.Dv = v.extent(3);
  if (p.D < 1) throw_axis_error("attend", "q", 3, "head size", p.D, "at least 1");
  check_extents("attend", "k", k,
                {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}, {"head size", p.D}}});
  if (p.Hkv == 0 ? p.Hq != 0 : p.Hq % p.Hkv != 0) {
    throw_axis_error("attend", "k", 2, "key heads", p.Hkv,
                     "a divisor of the " + std::to_string(p.Hq) + " query heads");
  }
  check_extents("attend", "v", v,
                {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}, {"value head size", p.Dv}}});
  check_extents(
      "attend", "out", out,
      {{{"batch", p.B}, {"queries", p.T}, {"query heads", p.Hq}, {"value head size", p.Dv}}});
  const tensor_view<T, 3>& lse = options.lse;
  if (lse.data() != nullptr || !lse.empty()) {
    check_extents("attend", "lse", lse,
                  {{{"batch", p.B}, {"queries", p.T}, {"query heads", p.Hq}}});
  }
  check_output("attend", {"out", out}, {{"q", q}, {"k", k}, {"v", v}, {"lse", lse}});
  check_output("attend", {"lse", lse}, {{"q", q}, {"k", k}, {"v", v}});
  check_mask(p, options.mask);
  p.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p.D)));
  return p;
}

// Lets a mechanism check its tensors, and the mask where it cares: the hooks check(problem) and
// check(problem, mask), both optional.
template <class Mechanism>
void check_mechanism(const Mechanism& mechanism, const problem& p, const mask& m) {
  if constexpr (requires { mechanism.check(p); }) mechanism.check(p);
  if constexpr (requires { mechanism.check(p, m); }) mechanism.check(p, m);
}

// How many sequences a call consists of: batch entries, or pieces of a packed batch.
constexpr index sequence_count(const problem& p, const mask& m) noexcept {
  return m.cu_q.given() ? m.cu_q.size() - 1 : p.B;
}

// Sequence n of a call whose mask has passed its check.
constexpr sequence sequence_at(const problem& p, const mask& m, index n) noexcept {
  sequence s;
  if (m.cu_q.given()) {
    s.first_query = m.cu_q[n];
    s.first_key = m.cu_k[n];
    s.T = m.cu_q[n + 1] - s.first_query;
    s.S = m.cu_k[n + 1] - s.first_key;
  } else {
    s.batch = n;
    s.T = p.T;
    s.S = p.S;
  }
  s.key_end = m.key_length.given() ? m.key_length[n] : s.S;
  s.key_begin = (std::min)(m.key_start.given() ? m.key_start[n] : 0, s.key_end);
  s.position = m.align == alignment::top_left ? 0 : s.S - s.T;
  if (m.query_start.given()) s.position = m.query_start[n];
  return s;
}

}  // namespace heed::inline HEED_ABI
