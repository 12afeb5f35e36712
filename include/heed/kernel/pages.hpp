// Large pages for large blocks of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>

#include <cerrno>
#endif

#include "heed/config.hpp"

namespace heed::inline HEED_ABI::kernel {

// Asks the system to back a block that has not been touched yet with large pages, as far as whole
// ones lie in it. The hardware fetches ahead within a page only, so that reading many megabytes in
// order is up to one and a half times as fast from large ones. Where there are none, nothing
// happens.
inline void ask_for_large_pages([[maybe_unused]] void* data,
                                [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = std::uintptr_t{1} << 21;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (at + page - 1) / page * page, end = (at + bytes) / page * page;
  if (begin >= end) return;
  const int before = errno;
  madvise(static_cast<std::byte*>(data) + (begin - at), end - begin, MADV_HUGEPAGE);
  errno = before;
#endif
}

}  // namespace heed::inline HEED_ABI::kernel
