// Writes safetensors files of float, double, bfloat16 and float16; safetensors.hpp has the format.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "heed/io/file.hpp"
#include "heed/io/safetensors.hpp"

namespace heed::inline HEED_ABI::io {

// A tensor to be written, row-major.
struct safetensors_tensor {
  std::string name;
  std::vector<index> extents;
  std::variant<std::span<const float>, std::span<const double>, std::span<const bfloat16>,
               std::span<const float16>>
      elements;
};

namespace safetensors_detail {

inline std::span<const std::byte> bytes_of(const safetensors_tensor& tensor) {
  return std::visit([](const auto& e) { return std::as_bytes(e); }, tensor.elements);
}
inline safetensors_dtype dtype_of(const safetensors_tensor& tensor) {
  return std::visit([]<class T>(std::span<const T>) { return safetensors_dtype_of<T>; },
                    tensor.elements);
}

inline void check_to_write(std::span<const safetensors_tensor> tensors, const std::string& file) {
  std::vector<std::string_view> names;
  for (const safetensors_tensor& tensor : tensors) {
    const std::string what = file + ": tensor '" + printable(tensor.name) + "' ";
    names.push_back(tensor.name);
    if (tensor.name == metadata_key) throw safetensors_error(what + "has a name that is taken");
    if (tensor.extents.size() > safetensors_max_rank) {
      throw safetensors_error(what + "has more than " + std::to_string(safetensors_max_rank) +
                              " axes");
    }
    const bool negative = std::ranges::any_of(tensor.extents, [](index e) { return e < 0; });
    const std::size_t element = dtype_bytes(dtype_of(tensor)), given = bytes_of(tensor).size();
    if (negative || bytes_of(tensor.extents, element) != given) {
      throw safetensors_error(what + "has shape " + shape_text(tensor.extents) + ", but " +
                              std::to_string(given / element) + " elements");
    }
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    throw safetensors_error(file + ": tensor '" + printable(*twice) + "' is there twice");
  }
}

// The order of the data: the largest elements first, so that all lie at multiples of their size.
inline std::vector<std::size_t> data_order(std::span<const safetensors_tensor> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t n) { return dtype_bytes(dtype_of(tensors[n])); });
  return order;
}

inline std::string header_text(std::span<const safetensors_tensor> tensors,
                               std::span<const std::size_t> order,
                               const safetensors_metadata& metadata, const std::string& file) {
  std::vector<std::size_t> begin(tensors.size());
  std::size_t end = 0;
  for (const std::size_t n : order) end = (begin[n] = end) + bytes_of(tensors[n]).size();

  std::string text = "{", separator;
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) {
      text += separator.empty() ? quoted(metadata_key, file) + ":{" : separator;
      text += quoted(key, file) + ":" + quoted(value, file);
      separator = ",";
    }
    text += "}";
  }
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const std::size_t bytes = bytes_of(tensors[n]).size();
    text += separator + quoted(tensors[n].name, file) + ":{\"dtype\":\"" +
            std::string(dtype_name(dtype_of(tensors[n]))) +
            "\",\"shape\":" + shape_text(tensors[n].extents) + ",\"data_offsets\":[" +
            std::to_string(begin[n]) + "," + std::to_string(begin[n] + bytes) + "]}";
    separator = ",";
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > safetensors_max_header) {
    throw safetensors_error(file + ": the header would have " + std::to_string(text.size()) +
                            " bytes, at most " + std::to_string(safetensors_max_header) +
                            " are allowed");
  }
  return text;
}

}  // namespace safetensors_detail

// Writes a file of the tensors, named in their order. Throws safetensors_error when two have one
// name, a shape does not fit its elements, a text is not UTF-8 or the file cannot be written; then
// path holds what it held before.
inline void write_safetensors(const std::filesystem::path& path,
                              std::span<const safetensors_tensor> tensors,
                              const safetensors_metadata& metadata = {}) {
  namespace detail = safetensors_detail;
  const std::string name = path.string();
  detail::check_to_write(tensors, name);
  const std::vector<std::size_t> order = detail::data_order(tensors);
  const std::string header = detail::header_text(tensors, order, metadata, name);
  replace_file<safetensors_error>(path, [&](std::ofstream& file) {
    const std::uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << header;
    for (const std::size_t n : order) {
      const auto bytes = detail::bytes_of(tensors[n]);
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
  });
}

}  // namespace heed::inline HEED_ABI::io
