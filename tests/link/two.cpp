// windows.h without NOMINMAX leaves macros of these names behind it. The headers of others come
// first: libstdc++ would remove the macros, and xsimd does not bear them.
#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <xsimd/xsimd.hpp>
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))

#include "heed/heed.hpp"

#if !defined(min) || !defined(max)
#error "the macros are gone, so this file shows nothing"
#endif

heed::index seen_in_two(const heed::mask& mask) {
  return mask.key_length[1];
}
