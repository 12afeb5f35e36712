// Any bytes as a .npy file.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "fuzz/must.hpp"
#include "heed/io/npy.hpp"

namespace heed_test {

inline bool fuzz_npy(std::span<const std::byte> bytes) {
  using namespace heed::io;
  npy_array array;
  try {
    array = parse_npy(bytes, "x");
  } catch (const npy_error& error) {
    return refused_in_a_sentence(error.what());
  }
  heed::index count = 1;
  for (const heed::index extent : array.extents()) count *= extent;
  must(array.size() == count, "an array has the elements of its shape");
  const std::string header = npy_header(array.type(), array.extents());
  const std::size_t element = array.type() == dtype::f32 ? 4 : 8;
  must(header.size() % 64 == 0, "the data of a file begin at a multiple of 64");

  // Written again, it is the same array.
  std::vector<std::byte> again(header.size() + static_cast<std::size_t>(count) * element);
  std::memcpy(again.data(), header.data(), header.size());
  const std::span<const std::byte> data = bytes.last(again.size() - header.size());
  if (!data.empty()) std::memcpy(again.data() + header.size(), data.data(), data.size());
  const npy_array back = parse_npy(again, "x");
  must(back.type() == array.type() && back.extents() == array.extents(), "arrays come back");
  const auto same = [&]<class T>(T) {
    const auto a = array.values<T>(), b = back.values<T>();
    return a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  };
  must(array.type() == dtype::f32 ? same(0.0f) : same(0.0), "elements come back");
  return true;
}

}  // namespace heed_test
