// Tensors that end, or begin, at memory which nothing may touch.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "heed/tensor.hpp"

namespace heed_test {

// Bytes straight from the operating system. Pages cost memory only once they are touched, so a
// buffer may be far larger than the machine.
class sparse_memory {
 public:
  explicit sparse_memory(std::size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  sparse_memory(sparse_memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  sparse_memory& operator=(sparse_memory&&) = delete;
  ~sparse_memory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::byte* bytes() const noexcept { return as<std::byte>(); }
  // No access to bytes [begin, begin + count), both multiples of the page size.
  void forbid(std::size_t begin, std::size_t count) const {
    if (::mprotect(bytes() + begin, count, PROT_NONE) != 0) throw std::bad_alloc();
  }

 private:
  void* data_;
  std::size_t bytes_;
};

// Up to 64 KiB that are directly followed by a page that cannot be read. One text at a time.
class guarded_bytes {
 public:
  guarded_bytes() { memory_.forbid(room, room); }

  std::span<const std::byte> operator()(std::string_view text) const {
    if (text.size() > room) throw std::length_error("guarded_bytes holds 64 KiB");
    std::byte* const start = memory_.bytes() + room - text.size();
    std::memcpy(start, text.data(), text.size());
    return {start, text.size()};
  }

 private:
  static constexpr std::size_t room = 65536;
  sparse_memory memory_{2 * room};
};

// Where a guarded tensor touches the forbidden page.
enum class guard { after_last, before_first };

// A tensor whose last element is directly followed by a page that cannot be read or written, or
// whose first element directly follows one. A kernel that reads or writes past that end crashes.
// (There is a forbidden page at the other end too, but not directly.)
//
// All memory starts as NaN; what lies between the strided elements must stay so, and gaps_intact()
// tells. Movable; views stay good.
template <class T, int Rank>
class guarded_tensor {
  static_assert(std::numeric_limits<T>::has_quiet_NaN);

 public:
  explicit guarded_tensor(const heed::shape<Rank>& extents, guard side = guard::after_last)
      : guarded_tensor(extents, row_major(extents), side) {}

  guarded_tensor(const heed::shape<Rank>& extents, const heed::shape<Rank>& strides,
                 guard side = guard::after_last)
      : elements_(elements(extents, strides)), memory_(bytes() + 2 * page()) {
    memory_.forbid(0, page());
    memory_.forbid(page() + bytes(), page());
    T* const first = reinterpret_cast<T*>(memory_.bytes() + page());
    const std::size_t all = bytes() / sizeof(T);
    begin_ = side == guard::before_first ? first : first + (all - elements_);
    for (std::size_t n = 0; n < all; ++n) first[n] = std::numeric_limits<T>::quiet_NaN();
    view_ = heed::tensor_view<T, Rank>(begin_, extents, strides);
  }

  const heed::tensor_view<T, Rank>& view() const noexcept { return view_; }
  heed::tensor_view<const T, Rank> read() const noexcept { return view_; }

  // value(i0, i1, ...) for every element. With a stride of 0 the last index wins.
  template <class F>
  void fill(F value) {
    for_each([&](auto... at) { view_(at...) = static_cast<T>(value(at...)); });
  }

  // Everything that no index of the view reaches is still the NaN it started as.
  bool gaps_intact() const {
    std::vector<bool> reached(bytes() / sizeof(T));
    const T* const first = reinterpret_cast<const T*>(memory_.bytes() + page());
    for_each([&](auto... at) {
      reached[static_cast<std::size_t>(view_.pointer(at...) - first)] = true;
    });
    const T nan = std::numeric_limits<T>::quiet_NaN();
    for (std::size_t n = 0; n < reached.size(); ++n) {
      if (!reached[n] && std::memcmp(&first[n], &nan, sizeof(T)) != 0) return false;
    }
    return true;
  }

 private:
  static std::size_t page() {
    static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
  }
  static heed::shape<Rank> row_major(const heed::shape<Rank>& extents) {
    alignas(T) static char here[sizeof(T)];
    return heed::tensor_view<T, Rank>(reinterpret_cast<T*>(here), extents).strides();
  }
  static std::size_t elements(const heed::shape<Rank>& extents, const heed::shape<Rank>& strides) {
    alignas(T) static char here[sizeof(T)];
    const heed::tensor_view<T, Rank> probe(reinterpret_cast<T*>(here), extents, strides);
    return probe.empty() ? 0 : static_cast<std::size_t>(probe.last_offset()) + 1;
  }
  // Whole pages that hold the elements, one at least.
  std::size_t bytes() const {
    const std::size_t pages = (elements_ * sizeof(T) + page() - 1) / page();
    return (pages == 0 ? 1 : pages) * page();
  }

  template <class F, class... Index>
  void for_each(F&& f, Index... at) const {
    if constexpr (sizeof...(Index) == Rank) {
      f(at...);
    } else {
      constexpr int axis = static_cast<int>(sizeof...(Index));
      for (heed::index i = 0; i < view_.extent(axis); ++i) for_each(f, at..., i);
    }
  }

  std::size_t elements_;
  sparse_memory memory_;
  T* begin_ = nullptr;
  heed::tensor_view<T, Rank> view_;
};

}  // namespace heed_test
