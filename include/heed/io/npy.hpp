// NumPy's .npy files: one dense array of float or double each.
//
// Read: format 1.0, 2.0 and 3.0, little-endian <f4 and <f8, C order, up to 8 axes. Written: 1.0.
// Whatever a header claims, only bytes that are there are touched, and nothing is allocated for a
// shape before the file is seen to hold it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "heed/io/file.hpp"
#include "heed/tensor.hpp"

namespace heed::inline HEED_ABI::io {

static_assert(std::endian::native == std::endian::little,
              "heed: npy.hpp copies little-endian files as they are; this machine is big-endian");

// What is wrong with a file, in one sentence that begins with its name.
class npy_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class dtype { f32, f64 };

template <class T>
inline constexpr dtype dtype_of = std::is_same_v<T, float> ? dtype::f32 : dtype::f64;

// As .npy headers spell it.
constexpr std::string_view descr(dtype type) noexcept {
  return type == dtype::f32 ? "<f4" : "<f8";
}

inline constexpr std::size_t npy_max_rank = 8;

// "(2, 3)", "(5,)", "()": as NumPy prints a shape.
inline std::string shape_text(std::span<const index> extents) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(extents[axis]);
  }
  return text + (extents.size() == 1 ? ",)" : ")");
}

// An array that owns its elements, row-major. name() is the file it came from, for messages.
class npy_array {
 public:
  npy_array() = default;
  template <class T>
  npy_array(std::string name, std::vector<index> extents, std::vector<T> elements)
      : name_(std::move(name)), extents_(std::move(extents)), elements_(std::move(elements)) {
    index count = 1;
    for (const index e : extents_) count *= e;
    if (static_cast<std::size_t>(count) != values<T>().size()) {
      throw npy_error(name_ + ": shape " + shape_text(extents_) + " does not have " +
                      std::to_string(values<T>().size()) + " elements");
    }
  }

  const std::string& name() const noexcept { return name_; }
  dtype type() const noexcept { return elements_.index() == 0 ? dtype::f32 : dtype::f64; }
  const std::vector<index>& extents() const noexcept { return extents_; }
  index rank() const noexcept { return static_cast<index>(extents_.size()); }
  index size() const noexcept {
    return std::visit([](const auto& e) { return static_cast<index>(e.size()); }, elements_);
  }

  // The elements as they were stored. Throws npy_error when T is not the stored type.
  template <class T>
  std::span<const T> values() const {
    if (const auto* e = std::get_if<std::vector<T>>(&elements_)) return *e;
    throw npy_error(name_ + ": dtype is " + std::string(descr(type())) + ", expected " +
                    std::string(descr(dtype_of<T>)));
  }

  // Throws npy_error when T is not the stored type, or the array does not have Rank axes.
  template <class T, int Rank>
  tensor_view<const T, Rank> view() const {
    if (rank() != Rank) {
      throw npy_error(name_ + ": shape " + shape_text(extents_) + " has " + std::to_string(rank()) +
                      " axes, expected " + std::to_string(Rank));
    }
    shape<Rank> e{};
    for (std::size_t axis = 0; axis < Rank; ++axis) e[axis] = extents_[axis];
    return tensor_view<const T, Rank>(values<T>(), e);
  }

  // A copy in another type: exact for f32 to f64, rounded the other way.
  template <class T>
  npy_array as() const {
    return std::visit(
        [this](const auto& from) {
          std::vector<T> to(from.size());
          for (std::size_t n = 0; n < from.size(); ++n) to[n] = static_cast<T>(from[n]);
          return npy_array(name_, extents_, std::move(to));
        },
        elements_);
  }

 private:
  std::string name_;
  std::vector<index> extents_ = {0};
  std::variant<std::vector<float>, std::vector<double>> elements_;
};

namespace npy_detail {

struct header {
  dtype type{};
  std::vector<index> extents;
};

// The Python dictionary of a header, {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }:
// just the literals that NumPy writes, keys in any order, each exactly once.
class header_parser {
 public:
  header_parser(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  header parse() {
    std::optional<dtype> type;
    std::optional<bool> fortran;
    std::optional<std::vector<index>> extents;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !type) {
        type = descr_value();
      } else if (key == "fortran_order" && !fortran) {
        fortran = boolean();
      } else if (key == "shape" && !extents) {
        extents = tuple();
      } else {
        fail("the header has the key '" + key + "' twice or should not have it");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) fail("the header goes on after its closing brace");
    if (!type || !fortran || !extents) fail("the header lacks descr, fortran_order or shape");
    if (*fortran) fail("the array is in Fortran order, expected C order");
    return {*type, std::move(*extents)};
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw npy_error(name_ + ": " + problem);
  }
  [[noreturn]] void malformed() const { fail("the header is not a NumPy header"); }

  void skip_space() {
    const std::size_t n = rest_.find_first_not_of(" \t\n\r");
    rest_.remove_prefix(n == std::string_view::npos ? rest_.size() : n);
  }
  bool accept(char c) {
    skip_space();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) malformed();
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  // A quoted word; escapes have no place in a header. Cut short, so that a message stays a line.
  std::string string() {
    skip_space();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) malformed();
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) malformed();
    std::string word = printable(rest_.substr(1, end - 1), 32);
    rest_.remove_prefix(end + 1);
    return word;
  }
  dtype descr_value() {
    skip_space();
    if (!rest_.empty() && rest_.front() == '[') fail("dtype is a record, expected <f4 or <f8");
    const std::string word = string();
    if (word == descr(dtype::f32)) return dtype::f32;
    if (word == descr(dtype::f64)) return dtype::f64;
    fail("dtype is '" + word + "', expected <f4 or <f8");
  }
  bool boolean() {
    if (accept_word("True")) return true;
    if (!accept_word("False")) malformed();
    return false;
  }
  index integer() {
    skip_space();
    if (rest_.empty() || rest_.front() < '0' || rest_.front() > '9') malformed();
    index value = 0;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      const index digit = rest_.front() - '0';
      if (value > ((std::numeric_limits<index>::max)() - digit) / 10) {
        fail("an extent of the shape does not fit 63 bits");
      }
      value = value * 10 + digit;
      rest_.remove_prefix(1);
    }
    return value;
  }
  std::vector<index> tuple() {
    std::vector<index> extents;
    expect('(');
    while (!accept(')')) {
      if (extents.size() == npy_max_rank) {
        fail("the shape has more than " + std::to_string(npy_max_rank) + " axes");
      }
      extents.push_back(integer());
      if (!accept(',')) {
        if (extents.size() == 1) malformed();  // (3) is an integer, (3,) a tuple
        expect(')');
        break;
      }
    }
    return extents;
  }

  std::string_view rest_;
  const std::string& name_;
};

template <class T>
npy_array elements(const std::string& name, header head, std::span<const std::byte> data) {
  index count = 1, bound = 1;  // bound: the product without extents of 0, which must fit, too
  for (const index e : head.extents) {
    if (e > 1 && bound > (std::numeric_limits<index>::max)() / static_cast<index>(sizeof(T)) / e) {
      throw npy_error(name + ": shape " + shape_text(head.extents) +
                      " has more elements than memory can hold");
    }
    bound *= e > 1 ? e : 1;
    count = e == 0 ? 0 : count * e;
  }
  const std::size_t needed = static_cast<std::size_t>(count) * sizeof(T);
  if (data.size() != needed) {
    throw npy_error(name + ": " + (data.size() < needed ? "truncated" : "bytes follow the data") +
                    ": shape " + shape_text(head.extents) + " of " + std::string(descr(head.type)) +
                    " is " + std::to_string(needed) + " bytes of data, the file has " +
                    std::to_string(data.size()));
  }
  std::vector<T> values(static_cast<std::size_t>(count));
  if (needed > 0) std::memcpy(values.data(), data.data(), needed);
  return npy_array(name, std::move(head.extents), std::move(values));
}

}  // namespace npy_detail

// The array in the bytes of a .npy file; name stands in messages. Throws npy_error.
inline npy_array parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  static constexpr std::string_view magic = "\x93NUMPY";
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  const std::string_view all(text, bytes.size());
  if (!all.starts_with(magic)) throw npy_error(name + ": not a .npy file");
  const auto byte = [&](std::size_t n) { return std::to_integer<std::size_t>(bytes[n]); };

  if (bytes.size() < 8) throw npy_error(name + ": truncated in the version");
  const std::size_t version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0) {
    throw npy_error(name + ": .npy version " + std::to_string(version) + "." +
                    std::to_string(byte(7)) + " is not supported");
  }
  const std::size_t start = version == 1 ? 10 : 12;
  if (bytes.size() < start) throw npy_error(name + ": truncated in the header length");
  std::size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (bytes.size() - start < length) {
    throw npy_error(name + ": truncated in the header, which has " + std::to_string(length) +
                    " bytes");
  }

  npy_detail::header head = npy_detail::header_parser(all.substr(start, length), name).parse();
  const auto data = bytes.subspan(start + length);
  return head.type == dtype::f32 ? npy_detail::elements<float>(name, std::move(head), data)
                                 : npy_detail::elements<double>(name, std::move(head), data);
}

// Throws npy_error when the file is missing, unreadable or not a whole .npy file.
inline npy_array read_npy(const std::filesystem::path& path) {
  return parse_npy(file_bytes::read<npy_error>(path).bytes(), path.string());
}

// The start of a version 1.0 file; padded so that the data begins at a multiple of 64 bytes.
inline std::string npy_header(dtype type, std::span<const index> extents) {
  std::string dictionary = "{'descr': '" + std::string(descr(type)) +
                           "', 'fortran_order': False, 'shape': " + shape_text(extents) + ", }";
  dictionary.append(63 - (10 + dictionary.size()) % 64, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

// Writes a view of any strides, row-major. Throws npy_error when the file cannot be written; then
// path holds what it held before.
template <class T, int Rank>
void write_npy(const std::filesystem::path& path, tensor_view<const T, Rank> view) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "heed: write_npy writes float and double");
  replace_file<npy_error>(path, [&](std::ofstream& file) {
    file << npy_header(dtype_of<T>, view.extents());
    std::vector<T> line(static_cast<std::size_t>(view.extent(Rank - 1)));
    shape<Rank> at{};
    for (index n = view.empty() ? 0 : view.size() / view.extent(Rank - 1); n > 0 && file; --n) {
      index offset = 0;
      for (std::size_t axis = 0; axis < Rank; ++axis) offset += at[axis] * view.strides()[axis];
      for (std::size_t i = 0; i < line.size(); ++i) {
        line[i] = view.data()[offset + static_cast<index>(i) * view.stride(Rank - 1)];
      }
      file.write(reinterpret_cast<const char*>(line.data()),
                 static_cast<std::streamsize>(line.size() * sizeof(T)));
      for (int axis = Rank - 2; axis >= 0; --axis) {
        if (++at[static_cast<std::size_t>(axis)] < view.extent(axis)) break;
        at[static_cast<std::size_t>(axis)] = 0;
      }
    }
  });
}
template <class T, int Rank>
requires(!std::is_const_v<T>) void write_npy(const std::filesystem::path& path,
                                             tensor_view<T, Rank> view) {
  write_npy(path, tensor_view<const T, Rank>(view));
}

}  // namespace heed::inline HEED_ABI::io
