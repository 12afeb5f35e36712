// Any bytes as a safetensors file.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "fuzz/must.hpp"
#include "heed/io/safetensors_write.hpp"

namespace heed_test {

// One tensor of an accepted file; added to the list of those that can be written.
inline void fuzz_tensor(const heed::io::safetensors& file, const heed::io::safetensors_entry& entry,
                        std::vector<heed::io::safetensors_tensor>& writable) {
  using namespace heed::io;
  must(file.find(entry.name) == &entry, "tensors are found by their names");
  must(entry.end - entry.begin == static_cast<std::size_t>(entry.size()) * dtype_bytes(entry.dtype),
       "a tensor has the bytes of its shape");
  std::vector<double> wide;
  try {
    wide = file.read<double>(entry.name);
  } catch (const safetensors_error& error) {
    must(entry.dtype > safetensors_dtype::f64, "numbers can be read");
    refused_in_a_sentence(error.what());
    return;
  }
  must(static_cast<heed::index>(wide.size()) == entry.size(), "all elements are read");
  const std::vector<float> narrow = file.read<float>(entry.name);
  for (std::size_t n = 0; n < wide.size(); ++n) {
    const bool both_nan = wide[n] != wide[n] && narrow[n] != narrow[n];
    must(both_nan || static_cast<float>(wide[n]) == narrow[n], "elements are the same as floats");
  }
  if (const auto view = file.view<float>(entry.name)) {
    writable.push_back({entry.name, entry.extents, *view});
  } else if (const auto halves = file.view<heed::bfloat16>(entry.name)) {
    writable.push_back({entry.name, entry.extents, *halves});
  }
}

inline bool fuzz_safetensors(std::span<const std::byte> bytes) {
  using namespace heed::io;
  std::vector<safetensors_tensor> writable;
  std::string header;
  try {
    const safetensors file(bytes, "x");
    std::size_t data = 0;
    for (const safetensors_entry& entry : file.tensors()) {
      fuzz_tensor(file, entry, writable);
      data += entry.end - entry.begin;
    }
    must(data <= bytes.size(), "tensors do not share bytes");

    // A header made of what was read says the same.
    const auto order = safetensors_detail::data_order(writable);
    header = safetensors_detail::header_text(writable, order, file.metadata(), "x");
    std::string again(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(again.data(), &length, sizeof length);
    again += header;
    for (const std::size_t n : order) {
      const auto elements = safetensors_detail::bytes_of(writable[n]);
      again.append(reinterpret_cast<const char*>(elements.data()), elements.size());
    }
    const safetensors back(std::as_bytes(std::span(again.data(), again.size())), "x");
    must(back.metadata() == file.metadata(), "metadata come back");
    must(back.tensors().size() == writable.size(), "tensors come back");
    for (std::size_t n = 0; n < writable.size(); ++n) {
      must(back.tensors()[n].name == writable[n].name, "names come back in order");
      must(back.tensors()[n].extents == writable[n].extents, "shapes come back");
    }
  } catch (const safetensors_error& error) {
    must(header.empty(), "what was written is read");
    return refused_in_a_sentence(error.what());
  }
  return true;
}

}  // namespace heed_test
