// Which keys a query row sees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include "heed/tensor.hpp"

namespace heed::inline HEED_ABI {

// A read-only list of 32- or 64-bit integers that somebody else owns and keeps until the call that
// it is for returns: lengths, starts, cu_seqlens.
class index_list {
 public:
  constexpr index_list() noexcept = default;
  constexpr index_list(std::span<const std::int32_t> list) noexcept
      : narrow_(list.data()), size_(static_cast<index>(list.size())), given_(true) {}
  constexpr index_list(std::span<const std::int64_t> list) noexcept
      : wide_(list.data()), size_(static_cast<index>(list.size())), given_(true) {}
  template <class Range>
  requires(std::is_convertible_v<const Range&, std::span<const std::int32_t>> &&
           !std::is_same_v<Range, index_list>) constexpr index_list(const Range& list) noexcept
      : index_list(std::span<const std::int32_t>(list)) {}
  template <class Range>
  requires(std::is_convertible_v<const Range&, std::span<const std::int64_t>> &&
           !std::is_same_v<Range, index_list>) constexpr index_list(const Range& list) noexcept
      : index_list(std::span<const std::int64_t>(list)) {}

  constexpr bool given() const noexcept { return given_; }
  constexpr index size() const noexcept { return size_; }
  constexpr index operator[](index n) const noexcept {
    return narrow_ != nullptr ? static_cast<index>(narrow_[n]) : static_cast<index>(wide_[n]);
  }

 private:
  const std::int32_t* narrow_ = nullptr;
  const std::int64_t* wide_ = nullptr;
  index size_ = 0;
  bool given_ = false;
};

enum class alignment { bottom_right, top_left };

// One concrete value that says which keys each query sees. Built by chaining:
//
//   heed::causal().window(1023, 0).key_lengths(lengths)
//
// Query row i of a sequence with T queries and S keys stands at position p = i + S - T (the last
// query at the last key: bottom-right), p = i with top_left(), or p = i + start[b] with
// query_starts(start). It sees key j when all of these hold:
//   - causal:             j <= p
//   - window(left,right): p - left <= j <= p + right, or j < n with always_visible(n)
//   - key_starts, key_lengths: start[b] <= j < length[b]; these only hide, positions stay
//   - visible(view):      view(b, h, i, j) is true
struct mask {
  static constexpr index unlimited = (std::numeric_limits<index>::max)() / 4;

  bool is_causal = false;
  alignment align = alignment::bottom_right;
  index left = unlimited;
  index right = unlimited;
  index first_keys = 0;
  index_list query_start;            // [B]
  index_list key_length;             // [B]
  index_list key_start;              // [B]
  index_list cu_q, cu_k;             // [sequences + 1]
  tensor_view<const bool, 4> shown;  // [B|1, H|1, T|1, S|1]; no data: all shown

  // Keys in [p - left, p + right]. A window of W keys that ends at the query is window(W - 1, 0).
  // Throws shape_error when one is negative.
  [[nodiscard]] constexpr mask window(index keys_left, index keys_right) const {
    if (keys_left < 0 || keys_right < 0) {
      throw shape_error("heed: mask::window: left is " + std::to_string(keys_left) +
                        " and right is " + std::to_string(keys_right) + ", expected both >= 0");
    }
    mask m = *this;
    m.left = (std::min)(keys_left, unlimited);
    m.right = (std::min)(keys_right, unlimited);
    return m;
  }
  // The first n keys stay visible outside the window (causality and padding still hide them).
  [[nodiscard]] constexpr mask always_visible(index n) const {
    if (n < 0) {
      throw shape_error("heed: mask::always_visible: n is " + std::to_string(n) +
                        ", expected >= 0");
    }
    mask m = *this;
    m.first_keys = n;
    return m;
  }
  // Row i stands at position i, whatever S - T is.
  [[nodiscard]] constexpr mask top_left() const {
    mask m = *this;
    m.align = alignment::top_left;
    return m;
  }
  // [B]: row 0 of sequence b stands at position starts[b]; overrides the alignment.
  [[nodiscard]] constexpr mask query_starts(index_list starts) const {
    mask m = *this;
    m.query_start = starts;
    return m;
  }
  // [B]: keys from lengths[b] on are hidden (right padding).
  [[nodiscard]] constexpr mask key_lengths(index_list lengths) const {
    mask m = *this;
    m.key_length = lengths;
    return m;
  }
  // [B]: keys before starts[b] are hidden (left padding).
  [[nodiscard]] constexpr mask key_starts(index_list starts) const {
    mask m = *this;
    m.key_start = starts;
    return m;
  }
  // Ragged batch, packed along T and S with B = 1: sequence n holds query rows
  // [cu_q[n], cu_q[n+1]) and keys [cu_k[n], cu_k[n+1]). Positions count within each sequence.
  // Cannot be combined with key_lengths, key_starts or query_starts.
  [[nodiscard]] constexpr mask packed(index_list cu_queries, index_list cu_keys) const {
    mask m = *this;
    m.cu_q = cu_queries;
    m.cu_k = cu_keys;
    return m;
  }
  // [B|1, H|1, T|1, S|1]: false hides. In a packed batch T and S are the packed totals.
  [[nodiscard]] constexpr mask visible(tensor_view<const bool, 4> view) const {
    mask m = *this;
    m.shown = view;
    return m;
  }
};

// Every query sees every key.
[[nodiscard]] constexpr mask full() {
  return {};
}

// Query at position p sees keys j <= p.
[[nodiscard]] constexpr mask causal() {
  mask m;
  m.is_causal = true;
  return m;
}

// [left, right] around each query without causality.
[[nodiscard]] constexpr mask window(index left, index right) {
  return mask{}.window(left, right);
}

}  // namespace heed::inline HEED_ABI
