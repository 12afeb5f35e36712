// A cache in a stream: a header that says what is in it, then what each sequence has of each lane.
#pragma once

#include <cstdint>
#include <istream>
#include <ostream>
#include <string>

#include "heed/half.hpp"
#include "heed/kernel/token_store.hpp"

namespace heed::inline HEED_ABI::kernel {

// Numbers are written as they lie in memory; the byte order is part of the header.
inline constexpr char cache_magic[8] = {'h', 'e', 'e', 'd', '-', 'k', 'v', '\n'};
inline constexpr std::uint64_t cache_version = 1;
inline constexpr std::uint64_t cache_byte_order = 0x0102030405060708U;

// What two caches must have in common for one to read what the other has written.
struct cache_header {
  std::uint64_t version = cache_version;
  std::uint64_t byte_order = cache_byte_order;
  std::uint64_t element_bytes = 0, stored_bytes = 0, stored_fraction = 0;
  std::uint64_t strip = 0;  // of packed keys: an instruction set has its own
  std::uint64_t sequences = 0, heads = 0, kv_heads = 0, head_size = 0, value_size = 0;
  std::uint64_t lanes = 0, layout = 0;  // a number made of the sizes of all lanes
};
// Of each sequence.
struct cache_entry {
  std::uint64_t length = 0, before = 0, asked_begin = 0, asked_end = 0;
  std::uint64_t check = 0;  // a number made of the others
};

inline std::uint64_t mix_number(std::uint64_t seed, std::uint64_t x) noexcept {
  return (seed ^ x) * 0x100000001b3U + (x >> 7);
}
inline std::uint64_t check_of(const cache_entry& e) noexcept {
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (const std::uint64_t x : {e.length, e.before, e.asked_begin, e.asked_end}) {
    sum = mix_number(sum, x);
  }
  return sum;
}
inline std::uint64_t layout_of(std::span<const lane_size> lanes) noexcept {
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (const lane_size& l : lanes) sum = mix_number(mix_number(sum, l.bytes), l.parts);
  return sum;
}

// What a stream could not be used for, in a sentence.
class cache_stream_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void write_bytes(std::ostream& to, const void* data, std::size_t size) {
  to.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  if (!to) throw cache_stream_error("heed: KvCache::save: the stream cannot be written");
}
inline void read_bytes(std::istream& from, void* data, std::size_t size, const char* what) {
  from.read(static_cast<char*>(data), static_cast<std::streamsize>(size));
  if (static_cast<std::size_t>(from.gcount()) != size) {
    throw cache_stream_error(std::string("heed: KvCache::load: the stream ends within ") + what);
  }
}

inline void write_header(std::ostream& to, const cache_header& header) {
  write_bytes(to, cache_magic, sizeof cache_magic);
  write_bytes(to, &header, sizeof header);
}
// Throws where a stream is not of a cache like `own`.
inline void read_header(std::istream& from, const cache_header& own) {
  char magic[sizeof cache_magic];
  read_bytes(from, magic, sizeof magic, "its first bytes");
  if (std::memcmp(magic, cache_magic, sizeof magic) != 0) {
    throw cache_stream_error("heed: KvCache::load: the stream does not hold a cache");
  }
  cache_header h;
  read_bytes(from, &h, sizeof h, "its header");
  const auto differ = [](const std::string& what, std::uint64_t found, std::uint64_t expected) {
    if (found == expected) return;
    throw cache_stream_error("heed: KvCache::load: " + what + " of the stream is " +
                             std::to_string(found) + ", this cache's " + std::to_string(expected));
  };
  if (h.byte_order != own.byte_order) {
    throw cache_stream_error("heed: KvCache::load: the stream was written in another byte order");
  }
  differ("the format's version", h.version, own.version);
  differ("the element size in bytes", h.element_bytes, own.element_bytes);
  differ("the stored elements' size in bytes", h.stored_bytes, own.stored_bytes);
  differ("the stored elements' bits of fraction", h.stored_fraction, own.stored_fraction);
  differ("the strip of packed keys, which depends on the instruction set,", h.strip, own.strip);
  differ("the number of sequences", h.sequences, own.sequences);
  differ("the number of heads", h.heads, own.heads);
  differ("the number of kv_heads", h.kv_heads, own.kv_heads);
  differ("the head_size", h.head_size, own.head_size);
  differ("the value_size", h.value_size, own.value_size);
  differ("the number of lanes", h.lanes, own.lanes);
  if (h.layout != own.layout) {
    throw cache_stream_error("heed: KvCache::load: the stream holds a cache with other mechanisms");
  }
}

}  // namespace heed::inline HEED_ABI::kernel
