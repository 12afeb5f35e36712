// What a safetensors file holds: element types, entries, and conversion of their elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "heed/half.hpp"

namespace heed::inline HEED_ABI::io {

// What is wrong with a file or a request, in one sentence that begins with the file's name.
class safetensors_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// clang-format off
enum class safetensors_dtype {
  f16, bf16, f32, f64, boolean, i8, u8, f8_e4m3, f8_e5m2, i16, u16, i32, u32, i64, u64
};
// clang-format on

namespace safetensors_detail {

struct dtype_row {
  std::string_view name;
  std::size_t bytes;
};
// In the order of safetensors_dtype.
inline constexpr dtype_row dtype_rows[] = {{"F16", 2},     {"BF16", 2}, {"F32", 4}, {"F64", 8},
                                           {"BOOL", 1},    {"I8", 1},   {"U8", 1},  {"F8_E4M3", 1},
                                           {"F8_E5M2", 1}, {"I16", 2},  {"U16", 2}, {"I32", 4},
                                           {"U32", 4},     {"I64", 8},  {"U64", 8}};

}  // namespace safetensors_detail

// As headers spell it, and bytes of one element.
constexpr std::string_view dtype_name(safetensors_dtype dtype) noexcept {
  return safetensors_detail::dtype_rows[static_cast<std::size_t>(dtype)].name;
}
constexpr std::size_t dtype_bytes(safetensors_dtype dtype) noexcept {
  return safetensors_detail::dtype_rows[static_cast<std::size_t>(dtype)].bytes;
}

// Types that a tensor can be read as and written from.
template <class T>
concept safetensors_element = half_type<T> || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <safetensors_element T>
inline constexpr safetensors_dtype safetensors_dtype_of =
    std::is_same_v<T, float16>    ? safetensors_dtype::f16
    : std::is_same_v<T, bfloat16> ? safetensors_dtype::bf16
    : std::is_same_v<T, float>    ? safetensors_dtype::f32
                                  : safetensors_dtype::f64;

// One tensor of a file.
struct safetensors_entry {
  std::string name;
  safetensors_dtype dtype{};
  std::vector<index> extents;
  std::size_t begin = 0, end = 0;  // of its bytes, counted from the end of the header

  // Number of elements.
  index size() const noexcept {
    index count = 1;
    for (const index e : extents) count *= e;
    return count;
  }
};

// The texts of "__metadata__", in the order of the file.
using safetensors_metadata = std::vector<std::pair<std::string, std::string>>;

namespace safetensors_detail {

inline std::string shape_text(std::span<const index> extents) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(extents[axis]);
  }
  return text + "]";
}

// Bytes of the elements; none when memory cannot hold them. An extent of 0 excuses no others:
// strides are made of them.
inline std::optional<std::size_t> bytes_of(std::span<const index> extents, std::size_t element) {
  index bound = static_cast<index>(element);
  bool empty = false;
  for (const index e : extents) {
    empty = empty || e == 0;
    if (e > 1 && bound > (std::numeric_limits<index>::max)() / e) return std::nullopt;
    bound *= e > 1 ? e : 1;
  }
  return empty ? 0 : static_cast<std::size_t>(bound);
}

// to[n] = the n-th From of the bytes, which may lie at any address, rounded once.
template <class From, class To>
void convert_run(const std::byte* from, std::span<To> to) noexcept {
  if constexpr (std::is_same_v<From, To>) {
    if (!to.empty()) std::memcpy(to.data(), from, to.size_bytes());
  } else {
    for (std::size_t n = 0; n < to.size(); ++n) {
      From value;
      std::memcpy(&value, from + n * sizeof(From), sizeof(From));
      if constexpr (half_type<From> && half_type<To>) {
        to[n] = static_cast<To>(static_cast<float>(value));
      } else {
        to[n] = static_cast<To>(value);
      }
    }
  }
}

}  // namespace safetensors_detail
}  // namespace heed::inline HEED_ABI::io
