// What a cache remembers of one sequence: lanes of bytes, each with so many for a chunk of tokens.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "heed/kernel/pages.hpp"

namespace heed::inline HEED_ABI::kernel {

// Tokens in a chunk of a cache: a whole number of strips of packed keys on every machine.
inline constexpr index cache_chunk = 64;

constexpr index chunks_for(index tokens) noexcept {
  return (tokens + cache_chunk - 1) / cache_chunk;
}

// What a lane has for a chunk: some bytes in each of some parts. A part is contiguous.
struct lane_size {
  std::size_t bytes = 0;
  std::size_t parts = 1;
};

// A part of a lane holds chunk after chunk, so that it grows, moves and is copied without anybody
// knowing what is in it. Token j of the store is the sequence's token before() + j.
class token_store {
 public:
  token_store() = default;
  // The lanes, and bytes beside them.
  explicit token_store(std::span<const lane_size> lanes, std::size_t aside_bytes = 0)
      : sizes_(lanes.begin(), lanes.end()), lanes_(lanes.size()), aside_size_(aside_bytes) {
    if (aside_bytes > 0) aside_ = allocate(aside_bytes);
  }

  index length() const noexcept { return length_; }
  index before() const noexcept { return before_; }
  index capacity() const noexcept { return chunks_ * cache_chunk; }
  std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(chunks_) * chunk_bytes() + aside_size_;
  }

  // Part p of lane n begins capacity() / 64 times the bytes of a chunk behind the part before it.
  template <class U>
  U* lane(std::size_t n) const noexcept {
    return reinterpret_cast<U*>(lanes_[n].get());
  }

  // Room for this many tokens in all. Throws std::bad_alloc and leaves everything as it was.
  void reserve(index tokens) {
    const index chunks = chunks_for(tokens);
    if (chunks <= chunks_) return;
    std::vector<buffer> grown(lanes_.size());
    for (std::size_t n = 0; n < lanes_.size(); ++n) {
      const std::size_t part = static_cast<std::size_t>(chunks) * sizes_[n].bytes;
      grown[n] = allocate(part * sizes_[n].parts);
      const std::size_t used = used_bytes(n, length_);
      std::byte* to = grown[n].get();
      for (std::size_t p = 0; p < sizes_[n].parts; ++p, to += part) {
        if (used > 0) std::memcpy(to, part_of(n, p), used);
        std::memset(to + used, 0, part - used);
      }
      std::memset(to, 0, slack);
    }
    lanes_.swap(grown);
    chunks_ = chunks;
  }
  // The same, twice as much as there was at least, so that many small steps cost little.
  void make_room(index tokens) {
    if (chunks_for(tokens) > chunks_) reserve((std::max)(tokens, 2 * capacity()));
  }

  void set_length(index tokens) noexcept {
    length_ = tokens;
    aside_range.end = (std::min)(aside_range.end, tokens);
    if (aside_range.end <= aside_range.begin) aside_range = {};
  }
  void clear() noexcept {
    length_ = before_ = 0;
    aside_range = {};
  }

  // What is worked out of the lanes for a few tokens, [begin, end); empty: of none. Not copied.
  struct range {
    index begin = 0, end = 0;
  };
  mutable range aside_range;
  template <class U>
  U* aside() const noexcept {
    return reinterpret_cast<U*>(aside_.get());
  }
  // Forgets the oldest tokens, a whole number of chunks.
  void drop(index tokens) noexcept {
    for (std::size_t n = 0; n < lanes_.size(); ++n) {
      const std::size_t gone = used_bytes(n, tokens), all = used_bytes(n, length_);
      for (std::size_t p = 0; p < sizes_[n].parts && all > gone; ++p) {
        std::memmove(part_of(n, p), part_of(n, p) + gone, all - gone);
      }
    }
    length_ -= tokens;
    before_ += tokens;
    aside_range.begin -= tokens;
    aside_range.end -= tokens;
    if (aside_range.begin < 0) aside_range = {};
  }
  // Becomes a copy of `other`, which has the same lanes. Throws std::bad_alloc and leaves
  // everything as it was.
  void copy_from(const token_store& other) {
    if (other.length_ > capacity()) {
      token_store grown(sizes_);
      grown.reserve(other.length_);
      lanes_.swap(grown.lanes_);
      chunks_ = grown.chunks_;
    }
    for (std::size_t n = 0; n < lanes_.size(); ++n) {
      const std::size_t used = used_bytes(n, other.length_);
      for (std::size_t p = 0; p < sizes_[n].parts && used > 0; ++p) {
        std::memcpy(part_of(n, p), other.part_of(n, p), used);
      }
    }
    restore(other.length_, other.before_);
  }

  // f(std::byte*, std::size_t) for what each part of each lane holds of so many tokens.
  template <class F>
  void visit(index tokens, const F& f) const {
    for (std::size_t n = 0; n < lanes_.size(); ++n) {
      const std::size_t used = used_bytes(n, tokens);
      for (std::size_t p = 0; p < sizes_[n].parts && used > 0; ++p) f(part_of(n, p), used);
    }
  }
  // What the store is, after visit() has filled it.
  void restore(index length, index before) noexcept {
    length_ = length;
    before_ = before;
    aside_range = {};
  }

 private:
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t slack = 256;  // readable behind every lane, in whole vectors
  struct deleter {
    void operator()(std::byte* p) const noexcept {
      ::operator delete (p, std::align_val_t{alignment});
    }
  };
  using buffer = std::unique_ptr<std::byte, deleter>;

  static buffer allocate(std::size_t size) {
    buffer data(
        static_cast<std::byte*>(::operator new (size + slack, std::align_val_t{alignment})));
    ask_for_large_pages(data.get(), size + slack);
    return data;
  }
  std::size_t chunk_bytes() const noexcept {
    std::size_t sum = 0;
    for (const lane_size& s : sizes_) sum += s.bytes * s.parts;
    return sum;
  }
  std::byte* part_of(std::size_t n, std::size_t part) const noexcept {
    return lanes_[n].get() + part * static_cast<std::size_t>(chunks_) * sizes_[n].bytes;
  }
  // Of whole chunks of a part.
  std::size_t used_bytes(std::size_t n, index tokens) const noexcept {
    return static_cast<std::size_t>(chunks_for(tokens)) * sizes_[n].bytes;
  }

  std::vector<lane_size> sizes_;
  std::vector<buffer> lanes_;
  std::size_t aside_size_ = 0;
  buffer aside_;
  index chunks_ = 0, length_ = 0, before_ = 0;
};

}  // namespace heed::inline HEED_ABI::kernel
