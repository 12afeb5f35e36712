// Scratch memory that the caller may keep, so that a second call of the same shape allocates
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "heed/config.hpp"

namespace heed::inline HEED_ABI {

// An arena. A call takes pieces from it and gives all of them back at its end; the memory stays
// with the workspace until it is destroyed or release() is called. A sequence of takes, marks and
// rewinds that has run once runs again without allocating. Not for use by two calls at the same
// time.
class workspace {
 public:
  workspace() = default;
  workspace(const workspace&) = delete;
  workspace& operator=(const workspace&) = delete;
  workspace(workspace&& other) noexcept { swap(other); }
  workspace& operator=(workspace&& other) noexcept {
    workspace taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~workspace() { release(); }

  // Bytes held, in use or not.
  std::size_t capacity() const noexcept {
    std::size_t total = 0;
    for (const block& b : blocks_) total += b.size;
    for (const auto& w : workers_) total += w->capacity();
    return total;
  }

  // Frees everything. Pieces taken before are gone.
  void release() noexcept {
    free_blocks();
    workers_.clear();
  }

  // count uninitialised objects, aligned to 64 bytes, followed by at least 64 readable bytes.
  // Throws std::bad_array_new_length for a count that is negative or beyond all memory, and
  // std::bad_alloc; both leave the workspace as it was.
  template <class T>
  T* take(index count) {
    static_assert(std::is_trivially_destructible_v<T>, "heed: a workspace never runs destructors");
    static_assert(alignof(T) <= alignment, "heed: a workspace aligns to 64 bytes");
    if (count < 0 || static_cast<std::size_t>(count) > largest / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    return static_cast<T*>(take_bytes(bytes_for<T>(count)));
  }

  // What take<T>(count) uses up; the sum over some takes is enough for reserve().
  template <class T>
  static constexpr std::size_t bytes_for(index count) noexcept {
    return (static_cast<std::size_t>(count) * sizeof(T) + 2 * alignment - 1) / alignment *
           alignment;
  }

  // Arenas of their own for n workers, so that tasks which run at the same time can take scratch
  // memory. worker(w) may be used by one task at a time, for w < n. All of them start empty, also
  // after a task that ended in an exception.
  void prepare_workers(index n) {
    while (static_cast<index>(workers_.size()) < n) {
      workers_.push_back(std::make_unique<workspace>());
    }
    for (const auto& w : workers_) w->reset();
  }
  // Gives every worker as much memory as the one that used most, in one block. For the end of a
  // call: which worker runs which task differs from call to call, and the next call must not
  // allocate because of that. Pieces that workers had taken are gone.
  void level_workers() {
    std::size_t most = 0;
    for (const auto& w : workers_) most = (std::max)(most, w->capacity());
    for (const auto& w : workers_) {
      if (most > 0) w->reserve(most);
    }
  }
  workspace& worker(index w) const noexcept { return *workers_[static_cast<std::size_t>(w)]; }

  // Where the arena stands; rewind(m) gives back all that was taken after m = mark().
  struct mark_type {
    std::size_t block, used;
  };
  mark_type mark() const noexcept { return {current_, used_}; }
  void rewind(mark_type m) noexcept {
    current_ = m.block;
    used_ = m.used;
  }
  void reset() noexcept { rewind({0, 0}); }

  // Rewinds when it goes out of scope, by an exception too.
  class scope {
   public:
    explicit scope(workspace& memory) noexcept : memory_(memory), mark_(memory.mark()) {}
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { memory_.rewind(mark_); }

   private:
    workspace& memory_;
    mark_type mark_;
  };

  // One block of at least this many bytes, so that the takes that follow do not grow the arena.
  // Pieces taken before are gone.
  void reserve(std::size_t bytes) {
    reset();
    if (blocks_.size() == 1 && blocks_.front().size >= bytes) return;
    free_blocks();
    add_block(bytes);
  }

 private:
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t largest = PTRDIFF_MAX - 2 * alignment;
  static constexpr std::size_t smallest_block = std::size_t{1} << 14;
  struct block {
    void* data;
    std::size_t size;
  };

  void swap(workspace& other) noexcept {
    blocks_.swap(other.blocks_);
    workers_.swap(other.workers_);
    std::swap(current_, other.current_);
    std::swap(used_, other.used_);
  }
  void free_blocks() noexcept {
    for (const block& b : blocks_) ::operator delete (b.data, std::align_val_t{alignment});
    blocks_.clear();
    reset();
  }
  void add_block(std::size_t size) {
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back({::operator new (size, std::align_val_t{alignment}), size});
  }
  // The first block from here on with enough room; blocks are only ever added behind the last, so
  // that a sequence of takes that runs again finds the same places.
  void* take_bytes(std::size_t need) {
    std::size_t at = current_, used = used_, held = 0;
    while (at < blocks_.size() && need > blocks_[at].size - used) {
      ++at;
      used = 0;
    }
    if (at == blocks_.size()) {
      for (const block& b : blocks_) held += b.size;
      add_block((std::max)({need, held, smallest_block}));
    }
    current_ = at;
    used_ = used + need;
    return static_cast<std::byte*>(blocks_[at].data) + used;
  }

  std::vector<block> blocks_;
  std::vector<std::unique_ptr<workspace>> workers_;
  std::size_t current_ = 0;
  std::size_t used_ = 0;
};

}  // namespace heed::inline HEED_ABI
