// Storage types of two bytes: bfloat16 (8 bits of exponent, 7 of fraction) and float16 (5 and 10,
// IEEE 754 binary16). They hold numbers; arithmetic is done in float. kernel/half.hpp converts
// whole runs of them.
//
// To float and double every value goes exactly. From them it is rounded once, to the nearest value
// and to the even one of two; what is too large becomes infinite; a NaN becomes a quiet NaN with
// its sign and the upper bits of its payload. No instruction set is asked for.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "heed/config.hpp"

namespace heed::inline HEED_ABI {

namespace half_detail {

inline constexpr std::uint32_t sign_bit = 0x80000000u;
inline constexpr std::uint32_t infinity = 0x7f800000u;  // of float, as all of these
inline constexpr std::uint32_t quiet_bit = 0x00400000u;

// bfloat16: the upper half of a float.
inline constexpr std::uint32_t bfloat16_half = 0x7fffu;  // just under half of its last place
inline constexpr std::uint32_t bfloat16_quiet = 0x40u;

// float16: its exponent is biased by 15 instead of 127, and its fraction has 13 bits less.
inline constexpr std::uint32_t float16_shift = 13;
inline constexpr std::uint32_t float16_half = 0x0fffu;
inline constexpr std::uint32_t float16_rebias = (127u - 15u) << 23;
inline constexpr std::uint32_t float16_normal = 0x38800000u;     // 2^-14: smaller is subnormal
inline constexpr std::uint32_t float16_too_large = 0x47800000u;  // 2^16: infinite
inline constexpr std::uint32_t float16_infinity = 0x7c00u;
inline constexpr std::uint32_t float16_quiet = 0x0200u;
// Numbers in [0.5, 1) are 2^-24 apart, as float16's subnormals: adding it rounds to those.
inline constexpr std::uint32_t float16_subnormal_magic = 0x3f000000u;

struct bfloat16_format {
  static constexpr std::uint16_t narrow(float value) noexcept {
    const auto x = std::bit_cast<std::uint32_t>(value);
    if ((x & ~sign_bit) > infinity) return static_cast<std::uint16_t>(x >> 16 | bfloat16_quiet);
    return static_cast<std::uint16_t>((x + bfloat16_half + (x >> 16 & 1u)) >> 16);
  }
  static constexpr float widen(std::uint16_t h) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
  }
};

struct float16_format {
  static constexpr std::uint16_t narrow(float value) noexcept {
    const auto x = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (x & sign_bit) >> 16, size = x & ~sign_bit;
    std::uint32_t h = float16_infinity;
    if (size > infinity) {
      h |= float16_quiet | (size >> float16_shift & 0x3ffu);
    } else if (size < float16_normal) {
      const float sum = std::bit_cast<float>(size) + std::bit_cast<float>(float16_subnormal_magic);
      h = std::bit_cast<std::uint32_t>(sum) - float16_subnormal_magic;
    } else if (size < float16_too_large) {
      h = (size - float16_rebias + float16_half + (size >> float16_shift & 1u)) >> float16_shift;
    }
    return static_cast<std::uint16_t>(sign | h);
  }
  static constexpr float widen(std::uint16_t h) noexcept {
    const std::uint32_t sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
    std::uint32_t x = (size << float16_shift) + float16_rebias;
    if (size > float16_infinity) {
      x = infinity | quiet_bit | size << float16_shift;
    } else if (size == float16_infinity) {
      x = infinity;
    } else if (size < 0x0400u) {  // size 2^-24, as the difference of two normal numbers
      const float above = std::bit_cast<float>((size << float16_shift) + float16_normal);
      x = std::bit_cast<std::uint32_t>(above - std::bit_cast<float>(float16_normal));
    }
    return std::bit_cast<float>(sign | x);
  }
};

// value in float, towards zero, with the last bit set when that is not exact: rounded once more to
// fewer bits it gives what value itself would.
constexpr float to_odd(double value) noexcept {
  constexpr float largest = (std::numeric_limits<float>::max)();
  const double size = value < 0 ? -value : value;
  if (size > static_cast<double>(largest) && size < std::numeric_limits<double>::infinity()) {
    return value < 0 ? -largest : largest;
  }
  const auto near = static_cast<float>(value);
  const auto back = static_cast<double>(near);
  if (back == value || value != value) return near;
  auto x = std::bit_cast<std::uint32_t>(near);
  if ((back < 0 ? -back : back) > size) --x;
  return std::bit_cast<float>(x | 1u);
}

}  // namespace half_detail

// A number of two bytes in one of the formats: bfloat16 or float16.
template <class Format>
class half_number {
 public:
  half_number() = default;
  constexpr explicit half_number(float value) noexcept : bits_(Format::narrow(value)) {}
  constexpr explicit half_number(double value) noexcept : half_number(half_detail::to_odd(value)) {}
  constexpr explicit operator float() const noexcept { return Format::widen(bits_); }
  constexpr explicit operator double() const noexcept {
    return static_cast<double>(Format::widen(bits_));
  }

  constexpr std::uint16_t bits() const noexcept { return bits_; }
  static constexpr half_number from_bits(std::uint16_t pattern) noexcept {
    half_number value(0.0f);
    value.bits_ = pattern;
    return value;
  }

 private:
  std::uint16_t bits_;
};
using bfloat16 = half_number<half_detail::bfloat16_format>;
using float16 = half_number<half_detail::float16_format>;

static_assert(sizeof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);
static_assert(sizeof(float16) == 2 && std::is_trivially_copyable_v<float16>);

// bfloat16 or float16.
template <class H>
concept half_type = std::is_same_v<H, bfloat16> || std::is_same_v<H, float16>;

}  // namespace heed::inline HEED_ABI
