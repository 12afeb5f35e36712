// Counts every operator new of the test program, for tests of "allocates nothing".
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace heed_test {

// Calls of operator new so far, by any thread.
inline std::atomic<long> allocations{0};
// While true, every operator new throws std::bad_alloc.
inline std::atomic<bool> out_of_memory{false};

inline void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (out_of_memory.load(std::memory_order_relaxed)) throw std::bad_alloc();
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace heed_test

// Weak, so that several translation units of one program may include this header. A replacement
// may not be inline. The array forms call these.
[[gnu::weak]] void* operator new(std::size_t size) {
  return heed_test::counted(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::weak]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return heed_test::counted(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::weak]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return heed_test::counted(size, static_cast<std::size_t>(alignment));
}
[[gnu::weak]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::weak]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::weak]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::weak]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
