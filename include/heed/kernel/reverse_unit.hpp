// What the row blocks of a gradient owner share, and the small things that a reverse sweep keeps.
#pragma once

#include <array>
#include <cstring>

#include "heed/kernel/reverse_dot.hpp"
#include "heed/kernel/sweep.hpp"

namespace heed::inline HEED_ABI::kernel {

// What the row blocks of one gradient owner share.
template <class T, class Arch, class List, class Source, class Gradient>
struct reverse_unit {
  const unit<T, Arch, List, Source>& forward;
  const Gradient& source;
  sums_set<T, Arch, List>& sums;
  tensor_view<const T, 4> out, dout;
  tensor_view<const T, 3> lse, dlse;  // dlse may have no data
  tensor_view<T, 4> dq;               // no data: not wanted
  head_rows<const T> values;          // of each key/value head, packed by pack_columns
  head_rows<T> dvalues;               // no data: not wanted
  const bool* strange;                // [S / strange_keys]: a key or value there is not finite
  bool logits_wanted;                 // a gradient of anything that acts through the logits

  static constexpr index strange_keys = 64;
};

// Copies of carries, one set per panel.
class carry_store {
 public:
  // each(f) calls f(pointer, count) for every piece.
  template <class Each>
  void take(const Each& each, index panels, workspace& memory) {
    size_ = 0;
    each([&](auto* piece, index count) { size_ += static_cast<index>(sizeof(*piece)) * count; });
    data_ = memory.take<std::byte>(size_ * panels);
  }
  template <class Each>
  void save(const Each& each, index panel) const {
    std::byte* at = data_ + size_ * panel;
    each([&](auto* piece, index count) {
      static_assert(std::is_trivially_copyable_v<std::remove_pointer_t<decltype(piece)>>,
                    "heed: carries shows pieces that can be copied byte by byte");
      const auto bytes = sizeof(*piece) * static_cast<std::size_t>(count);
      if (bytes > 0) std::memcpy(at, piece, bytes);
      at += bytes;
    });
  }
  template <class Each>
  void restore(const Each& each, index panel) const {
    const std::byte* at = data_ + size_ * panel;
    each([&](auto* piece, index count) {
      const auto bytes = sizeof(*piece) * static_cast<std::size_t>(count);
      if (bytes > 0) std::memcpy(piece, at, bytes);
      at += bytes;
    });
  }

 private:
  index size_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace heed::inline HEED_ABI::kernel
