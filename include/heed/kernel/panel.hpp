// A panel: the logits of some rows of one row block for a run of keys, and which of them are
// visible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "heed/kernel/simd.hpp"
#include "heed/problem.hpp"

namespace heed::inline HEED_ABI {

namespace kernel {

// Keys [begin, end).
struct key_range {
  index begin, end;
};

// Row i sees keys [lo, hi) and [begin, first); lo == hi when the first part is empty.
struct row_bounds {
  index lo = 0, hi = 0, first = 0;
};

// Keys that some of a few rows see lie in [lo, hi); all of them see [latest_lo, earliest_hi).
struct seen_keys {
  index lo = PTRDIFF_MAX, hi = 0, latest_lo = 0, earliest_hi = PTRDIFF_MAX;

  seen_keys(const row_bounds* bounds, index begin, index end, index key_begin) noexcept {
    for (index r = begin; r < end; ++r) {
      const row_bounds& b = bounds[r];
      if (b.first > key_begin) {
        lo = (std::min)(lo, key_begin);
        hi = (std::max)(hi, b.first);
      }
      if (b.lo < b.hi) {
        lo = (std::min)(lo, b.lo);
        hi = (std::max)(hi, b.hi);
      }
      latest_lo = (std::max)(latest_lo, b.lo);
      earliest_hi = (std::min)(earliest_hi, b.hi);
    }
    lo = (std::min)(lo, hi);
  }
};

// The mask of one sequence, ready to be asked row by row.
struct visibility {
  mask m;
  sequence s;

  constexpr row_bounds bounds(index row) const noexcept {
    const index p = row + s.position;
    row_bounds b;
    const index newest = m.is_causal ? (std::min)(s.key_end, p + 1) : s.key_end;
    b.hi = (std::min)(newest, p + m.right + 1);
    b.lo = (std::max)(s.key_begin, p - m.left);
    b.first = (std::max)(s.key_begin, (std::min)(newest, m.first_keys));
    if (b.hi <= b.lo) b.lo = b.hi = b.first;
    if (b.first >= b.lo) {  // one interval
      b.lo = s.key_begin;
      b.hi = (std::max)(b.hi, b.first);
      b.first = s.key_begin;
      if (b.hi <= b.lo) b.lo = b.hi = s.key_begin;
    }
    return b;
  }
  constexpr bool has_view() const noexcept { return m.shown.data() != nullptr; }
  // The boolean view's line for one head and row: element j at line[j * stride].
  constexpr const bool* view_line(index head, index row, index& stride) const noexcept {
    const auto& v = m.shown;
    stride = v.extent(3) == 1 ? 0 : v.stride(3);
    return v.data() + (v.extent(0) == 1 ? 0 : s.batch * v.stride(0)) +
           (v.extent(1) == 1 ? 0 : head * v.stride(1)) +
           (v.extent(2) == 1 ? 0 : (s.first_query + row) * v.stride(2)) + s.first_key * stride;
  }
};

}  // namespace kernel

// What forward(panel) works on. Entry (g, r, c) is the logit (or, in place probs, the probability)
// of query head head + g, row row + r of the sequence, and key column + c. Stages work on rows
// [begin, end) and columns [first, last); those outside hold nothing that matters. Columns beyond
// `last` up to the next multiple of a SIMD width may be overwritten freely.
template <class T, class Arch>
struct panel {
  using value_type = T;
  using arch = Arch;

  T* data = nullptr;
  index head_stride = 0, row_stride = 0;
  index origin = 0;  // the row at data
  index head = 0, heads = 0;
  index row = 0, begin = 0, end = 0;
  index column = 0, first = 0, last = 0;
  const kernel::visibility* visible = nullptr;
  const kernel::row_bounds* bounds = nullptr;  // [r]
  bool all_visible = false;                    // nothing in [begin, end) x [first, last) is hidden

  T* line(index g, index r) const noexcept {
    return data + g * head_stride + (r - origin) * row_stride;
  }
  index key(index c) const noexcept { return column + c; }
  index position(index r) const noexcept { return row + r + visible->s.position; }

  struct columns {
    index from, to;
  };
  // The columns in [first, last) that some of rows [a, b) sees if column 0 stands for key `key_at`.
  columns seen(index a, index b, index key_at) const noexcept {
    const kernel::seen_keys keys(bounds, a, b, visible->s.key_begin);
    const index from = std::clamp(keys.lo - key_at, first, last);
    return {from, std::clamp(keys.hi - key_at, from, last)};
  }

  // Writes `value` to every invisible entry of a buffer laid out like this panel.
  void hide(T* buffer, T value) const noexcept {
    if (all_visible) return;
    for (index g = 0; g < heads; ++g) {
      for (index r = begin; r < end; ++r) {
        hide_line(buffer + g * head_stride + (r - origin) * row_stride, g, r, value);
      }
    }
  }
  void hide(T value) const noexcept { hide(data, value); }

 private:
  void hide_line(T* line, index g, index r, T value) const noexcept {
    const kernel::row_bounds& b = bounds[r];
    const auto clip = [&](index key_at) { return (std::clamp)(key_at - column, first, last); };
    const index early = clip(visible->s.key_begin), early_end = clip(b.first);
    const index lo = clip(b.lo), hi = clip(b.hi);
    kernel::fill_columns<Arch>(line, first, (std::min)(early, lo), value);
    kernel::fill_columns<Arch>(line, (std::max)(early, early_end), lo, value);
    kernel::fill_columns<Arch>(line, hi, last, value);
    if (!visible->has_view()) return;
    index stride = 0;
    const bool* shown = visible->view_line(head + g, row + r, stride);
    const index from = (std::max)(first, -column);
    const index to = (std::min)(last, visible->s.S - column);
    for (index c = from; c < to; ++c) {
      if (!shown[(column + c) * stride]) line[c] = value;
    }
  }
};

}  // namespace heed::inline HEED_ABI
