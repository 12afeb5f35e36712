// Scratch memory that the caller may keep, so that a second call of the same shape allocates
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "heed/config.hpp"

namespace heed::inline HEED_ABI {

// An arena. A call takes pieces from it and gives all of them back at its end; the memory stays
// with the workspace until it is destroyed or release() is called. Not for use by two calls at the
// same time.
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
    for (const block& b : blocks_) ::operator delete (b.data, std::align_val_t{alignment});
    blocks_.clear();
    workers_.clear();
    current_ = 0;
    used_ = 0;
  }

  // count uninitialised objects, aligned to 64 bytes, followed by at least 64 readable bytes.
  template <class T>
  T* take(index count) {
    static_assert(std::is_trivially_destructible_v<T>, "heed: a workspace never runs destructors");
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }

  // Arenas of their own for n workers, so that tasks which run at the same time can take scratch
  // memory. worker(w) may be used by one task at a time, for w < n.
  void prepare_workers(index n) {
    while (static_cast<index>(workers_.size()) < n) {
      workers_.push_back(std::make_unique<workspace>());
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

  // One block of at least this many bytes, so that the takes that follow do not grow the arena.
  void reserve(std::size_t bytes) {
    if (blocks_.size() == 1 && blocks_.front().size >= bytes) return;
    release();
    add_block(bytes);
  }

 private:
  static constexpr std::size_t alignment = 64;
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
  void add_block(std::size_t size) {
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back({::operator new (size, std::align_val_t{alignment}), size});
  }
  void* take_bytes(std::size_t bytes) {
    const std::size_t need = (bytes + 2 * alignment - 1) / alignment * alignment;
    while (current_ < blocks_.size() && used_ + need > blocks_[current_].size) {
      ++current_;
      used_ = 0;
    }
    if (current_ == blocks_.size()) {
      add_block(std::max(need, capacity()));
      used_ = 0;
    }
    void* piece = static_cast<std::byte*>(blocks_[current_].data) + used_;
    used_ += need;
    return piece;
  }

  std::vector<block> blocks_;
  std::vector<std::unique_ptr<workspace>> workers_;
  std::size_t current_ = 0;
  std::size_t used_ = 0;
};

}  // namespace heed::inline HEED_ABI
