// Version, ABI namespace and error type: what every other header stands on.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 1
#define HEED_VERSION_PATCH 0

#if defined(__FAST_MATH__) && !defined(HEED_ALLOW_FAST_MATH)
#error \
    "heed: -ffast-math breaks -inf masks and empty rows; build without it, or define HEED_ALLOW_FAST_MATH to take the risk"
#endif

// All of heed sits in an inline namespace that names the version and the instruction set. Objects
// built with different -m flags link into one program and each keeps its own code; only passing a
// heed type from one to the other fails to link. Nothing ever runs an instruction its own
// translation unit was not built for.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define HEED_ABI v0_1_avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define HEED_ABI v0_1_avx2_fma
#elif defined(__AVX2__)
#define HEED_ABI v0_1_avx2
#elif defined(__AVX__)
#define HEED_ABI v0_1_avx
#elif defined(__SSE4_1__)
#define HEED_ABI v0_1_sse4
#elif defined(__x86_64__) || defined(_M_X64)
#define HEED_ABI v0_1_sse2
#elif defined(__aarch64__)
#define HEED_ABI v0_1_neon64
#else
#define HEED_ABI v0_1_generic
#endif

namespace heed::inline HEED_ABI {

// Sizes, strides and indices. Signed and 64 bits wide, so that stride arithmetic cannot wrap.
using index = std::ptrdiff_t;

// Thrown by every public call whose arguments do not fit together. The message names the argument,
// the axis and both extents. Nothing has been written when it is thrown.
class shape_error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace heed::inline HEED_ABI
