// Safetensors files: named arrays, as frameworks store trained weights.
//
// A file is the length n of its header (8 bytes, little-endian), n bytes of JSON
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
//    "__metadata__": {"key": "text", ...}}
// and the data, row-major, which the offsets share out without gap or overlap.
//
// Read: memory-mapped; the header is checked whole before anything is believed, and only bytes that
// are there are touched. F16, BF16, F32 and F64 are converted to the type asked for; tensors of
// other types may be in the file, but not be read. safetensors_write.hpp writes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "heed/io/file.hpp"
#include "heed/io/safetensors_types.hpp"

namespace heed::inline HEED_ABI::io {

static_assert(std::endian::native == std::endian::little,
              "heed: safetensors.hpp takes little-endian data as they are; this machine is "
              "big-endian");

inline constexpr std::size_t safetensors_max_rank = 8;
inline constexpr std::uint64_t safetensors_max_header = 100'000'000;

namespace safetensors_detail {

inline constexpr std::string_view metadata_key = "__metadata__";

// Takes the events of a JSON parser and accepts just what a header may be; the parser builds
// nothing, and stops at the first event that has no place.
class header_reader {
 public:
  using json = nlohmann::json;

  header_reader(const std::string& file, std::vector<safetensors_entry>& entries,
                safetensors_metadata& metadata)
      : file_(file), entries_(entries), metadata_(metadata) {}

  bool key(std::string& k) {
    if (place_ == place::tensors) {
      if (k == metadata_key) {
        if (std::exchange(has_metadata_, true)) fail("the header has " + k + " twice");
        place_ = place::before_metadata;
      } else {
        entries_.emplace_back().name = std::move(k);
        has_dtype_ = has_shape_ = has_offsets_ = false;
        place_ = place::before_tensor;
      }
    } else if (place_ == place::metadata) {
      metadata_.emplace_back(std::move(k), std::string());
      place_ = place::metadata_text;
    } else if (k == "dtype" && !std::exchange(has_dtype_, true)) {
      place_ = place::dtype;
    } else if (k == "shape" && !std::exchange(has_shape_, true)) {
      place_ = place::before_shape;
    } else if (k == "data_offsets" && !std::exchange(has_offsets_, true)) {
      place_ = place::before_offsets;
    } else {
      fail_here("has the key '" + printable(k) + "' twice or should not have it");
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == place::before_header) return enter(place::tensors);
    if (place_ == place::before_metadata) return enter(place::metadata);
    if (place_ == place::before_tensor) return enter(place::tensor);
    unexpected("an object");
  }
  bool end_object() {
    if (place_ == place::tensors) return enter(place::end);
    if (place_ == place::tensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      fail_here("lacks dtype, shape or data_offsets");
    }
    return enter(place::tensors);
  }
  bool start_array(std::size_t) {
    offsets_ = 0;
    if (place_ == place::before_shape) return enter(place::shape);
    if (place_ == place::before_offsets) return enter(place::offsets);
    unexpected("an array");
  }
  bool end_array() {
    if (place_ == place::offsets && offsets_ != 2) fail_here("has data_offsets that are not two");
    return enter(place::tensor);
  }

  bool string(std::string& text) {
    if (place_ == place::metadata_text) {
      metadata_.back().second = std::move(text);
      return enter(place::metadata);
    }
    if (place_ != place::dtype) unexpected("a string");
    const auto* const row = std::ranges::find(dtype_rows, text, &dtype_row::name);
    if (row == std::end(dtype_rows)) fail_here("has the unknown dtype '" + printable(text) + "'");
    entries_.back().dtype = static_cast<safetensors_dtype>(row - dtype_rows);
    return enter(place::tensor);
  }
  bool number_unsigned(std::uint64_t number) {
    if (place_ == place::shape) {
      std::vector<index>& extents = entries_.back().extents;
      if (extents.size() == safetensors_max_rank) {
        fail_here("has more than " + std::to_string(safetensors_max_rank) + " axes");
      }
      if (number > static_cast<std::uint64_t>((std::numeric_limits<index>::max)())) {
        fail_here("has an extent of " + std::to_string(number));
      }
      extents.push_back(static_cast<index>(number));
    } else if (place_ == place::offsets) {
      if (offsets_ == 2) fail_here("has data_offsets that are not two");
      safetensors_entry& entry = entries_.back();
      (offsets_++ == 0 ? entry.begin : entry.end) = static_cast<std::size_t>(number);
    } else {
      unexpected("a number");
    }
    return true;
  }
  bool number_integer(std::int64_t) { unexpected("a negative number"); }
  bool number_float(double, const std::string&) { unexpected("a number that is not whole"); }
  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("a truth value"); }
  bool binary(json::binary_t&) { unexpected("a binary value"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) {
    fail("the header is not JSON at its byte " + std::to_string(at));
  }

 private:
  // clang-format off
  enum class place {
    before_header, tensors, before_metadata, metadata, metadata_text, before_tensor, tensor, dtype,
    before_shape, shape, before_offsets, offsets, end
  };
  // clang-format on

  bool enter(place next) {
    place_ = next;
    return true;
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw safetensors_error(file_ + ": " + problem);
  }
  [[noreturn]] void fail_here(const std::string& problem) const {
    fail("tensor '" + printable(entries_.back().name) + "' " + problem);
  }
  [[noreturn]] void unexpected(const char* what) const {
    const bool in_tensor = place_ >= place::before_tensor && place_ < place::end;
    const std::string problem = std::string("has ") + what + " in a wrong place";
    in_tensor ? fail_here(problem) : fail("the header " + problem);
  }

  const std::string& file_;
  std::vector<safetensors_entry>& entries_;
  safetensors_metadata& metadata_;
  place place_ = place::before_header;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

inline void check_extent_of_data(const safetensors_entry& entry, std::size_t data,
                                 const std::string& file) {
  const auto fail = [&](const std::string& problem) {
    throw safetensors_error(file + ": tensor '" + printable(entry.name) + "' " + problem);
  };
  const auto bytes = bytes_of(entry.extents, dtype_bytes(entry.dtype));
  const std::string type =
      "shape " + shape_text(entry.extents) + " of " + std::string(dtype_name(entry.dtype));
  const std::string offsets =
      "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (!bytes) fail("has " + type + ", which is more than memory can hold");
  if (entry.begin > entry.end) fail("has " + offsets + ", which end before they begin");
  if (entry.end > data) {
    fail("has " + offsets + ", beyond the " + std::to_string(data) + " bytes of data in the file");
  }
  if (entry.end - entry.begin != *bytes) {
    fail("has " + offsets + ", but " + type + " is " + std::to_string(*bytes) + " bytes");
  }
}

// The tensors share out all of the data: none overlap, nothing lies between them.
inline void check_layout(const std::vector<safetensors_entry>& entries, std::size_t data,
                         const std::string& file) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {},
                    [&](std::size_t n) { return std::pair(entries[n].begin, entries[n].end); });
  std::size_t end = 0;
  for (const std::size_t n : order) {
    if (entries[n].begin != end) {
      throw safetensors_error(
          file + ": tensor '" + printable(entries[n].name) +
          (entries[n].begin < end ? "' overlaps another" : "' begins after a gap in the data"));
    }
    end = entries[n].end;
  }
  if (end != data) {
    throw safetensors_error(file + ": " + std::to_string(data - end) + " bytes follow the data");
  }
}

// A word of JSON, in quotes.
inline std::string quoted(std::string_view text, const std::string& file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw safetensors_error(file + ": '" + printable(text) + "' is not UTF-8");
  }
}

}  // namespace safetensors_detail

// The tensors of a file. Views and reads may run at the same time.
class safetensors {
 public:
  // Of a file's bytes, which are not copied and must stay; name stands in messages. Throws
  // safetensors_error when they are not a whole and sound safetensors file.
  safetensors(std::span<const std::byte> bytes, std::string name) : name_(std::move(name)) {
    parse(bytes);
  }
  // Of a file that it maps into memory, and which must not change meanwhile. Throws
  // safetensors_error also when the file is missing or cannot be read.
  static safetensors open(const std::filesystem::path& path) {
    file_bytes file = file_bytes::map<safetensors_error>(path);
    safetensors result(file.bytes(), path.string());
    result.file_ = std::move(file);
    return result;
  }

  const std::string& name() const noexcept { return name_; }
  // In the order of the header.
  const std::vector<safetensors_entry>& tensors() const noexcept { return entries_; }
  const safetensors_metadata& metadata() const noexcept { return metadata_; }

  const safetensors_entry* find(std::string_view tensor) const noexcept {
    const auto found = std::ranges::lower_bound(by_name_, tensor, {}, name_of{entries_});
    return found != by_name_.end() && entries_[*found].name == tensor ? &entries_[*found] : nullptr;
  }
  bool contains(std::string_view tensor) const noexcept { return find(tensor) != nullptr; }
  // Throws safetensors_error when there is no tensor of this name.
  const safetensors_entry& at(std::string_view tensor) const {
    if (const safetensors_entry* entry = find(tensor)) return *entry;
    throw safetensors_error(name_ + ": has no tensor '" + printable(tensor) + "'");
  }

  // The elements, row-major, in another type where need be: rounded once, to the nearest, where
  // that is narrower. Throws safetensors_error when there is no such tensor, or it does not hold
  // F16, BF16, F32 or F64.
  template <safetensors_element T>
  std::vector<T> read(std::string_view tensor) const {
    const safetensors_entry& entry = readable(tensor);
    std::vector<T> elements(static_cast<std::size_t>(entry.size()));
    convert<T>(entry, elements);
    return elements;
  }
  // The same into to. Throws safetensors_error, too, when to has another size; nothing is written
  // then.
  template <safetensors_element T>
  void read(std::string_view tensor, std::span<T> to) const {
    const safetensors_entry& entry = readable(tensor);
    if (to.size() != static_cast<std::size_t>(entry.size())) {
      throw safetensors_error(name_ + ": tensor '" + printable(tensor) + "' has shape " +
                              safetensors_detail::shape_text(entry.extents) + " and " +
                              std::to_string(entry.size()) + " elements, expected " +
                              std::to_string(to.size()));
    }
    convert<T>(entry, to);
  }
  // The elements where they lie, while this object lives; none when the file holds another type
  // or has them at an address that T does not bear. Throws safetensors_error when there is no such
  // tensor.
  template <safetensors_element T>
  std::optional<std::span<const T>> view(std::string_view tensor) const {
    const safetensors_entry& entry = at(tensor);
    const std::byte* const first = data_.data() + entry.begin;
    if (entry.dtype != safetensors_dtype_of<T> ||
        reinterpret_cast<std::uintptr_t>(first) % alignof(T) != 0) {
      return std::nullopt;
    }
    return std::span(reinterpret_cast<const T*>(first), static_cast<std::size_t>(entry.size()));
  }

 private:
  struct name_of {
    const std::vector<safetensors_entry>& entries;
    std::string_view operator()(std::size_t n) const noexcept { return entries[n].name; }
  };

  [[noreturn]] void fail(const std::string& problem) const {
    throw safetensors_error(name_ + ": " + problem);
  }

  void parse(std::span<const std::byte> bytes) {
    std::uint64_t length = 0;
    if (bytes.size() < sizeof length) fail("truncated in the header length");
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > safetensors_max_header) {
      fail("not a safetensors file: its header would have " + std::to_string(length) + " bytes");
    }
    if (bytes.size() - sizeof length < length) {
      fail("truncated in the header, which has " + std::to_string(length) + " bytes");
    }
    const auto size = static_cast<std::size_t>(length);
    const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof length,
                                  size);
    data_ = bytes.subspan(sizeof length + size);
    // A zero would end the text for the parser.
    if (!header.starts_with('{') || header.find('\0') != std::string_view::npos) {
      fail("the header is not a JSON object");
    }
    safetensors_detail::header_reader reader(name_, entries_, metadata_);
    nlohmann::json::sax_parse(header, &reader);
    index_names();
    for (const safetensors_entry& entry : entries_) {
      safetensors_detail::check_extent_of_data(entry, data_.size(), name_);
    }
    safetensors_detail::check_layout(entries_, data_.size(), name_);
  }

  void index_names() {
    by_name_.resize(entries_.size());
    std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
    std::ranges::sort(by_name_, {}, name_of{entries_});
    const auto twice = std::ranges::adjacent_find(by_name_, {}, name_of{entries_});
    if (twice != by_name_.end())
      fail("has tensor '" + printable(entries_[*twice].name) + "' twice");
  }

  const safetensors_entry& readable(std::string_view tensor) const {
    const safetensors_entry& entry = at(tensor);
    if (entry.dtype > safetensors_dtype::f64) {
      fail("tensor '" + printable(tensor) + "' holds " + std::string(dtype_name(entry.dtype)) +
           ", expected F16, BF16, F32 or F64");
    }
    return entry;
  }
  template <class T>
  void convert(const safetensors_entry& entry, std::span<T> to) const noexcept {
    using safetensors_detail::convert_run;
    const std::byte* const from = data_.data() + entry.begin;
    switch (entry.dtype) {
      case safetensors_dtype::f16:
        return convert_run<float16>(from, to);
      case safetensors_dtype::bf16:
        return convert_run<bfloat16>(from, to);
      case safetensors_dtype::f32:
        return convert_run<float>(from, to);
      default:
        return convert_run<double>(from, to);
    }
  }

  std::string name_;
  file_bytes file_;
  std::span<const std::byte> data_;
  std::vector<safetensors_entry> entries_;
  std::vector<std::size_t> by_name_;  // numbers of entries_, sorted by their names
  safetensors_metadata metadata_;
};

}  // namespace heed::inline HEED_ABI::io
