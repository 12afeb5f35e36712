// Function templates that nearly every program needs, compiled once: together they take longer than
// most files that call them.
#pragma once

#include "heed/checks.hpp"
#include "heed/kernel/stream.hpp"
#include "heed/layers/projection.hpp"

#define HEED_COMPILED_STRIPS(linkage, T, Vecs)                                                  \
  linkage template void product_strip<default_arch, Vecs>(                                      \
      const T*, index, unit_stride, const T*, index, T*, index, index, index, start, const T*); \
  linkage template void product_strip<default_arch, Vecs>(                                      \
      const T*, unit_stride, index, const T*, index, T*, index, index, index, start, const T*);
#define HEED_COMPILED_STREAM(linkage, T, Streams, Add)              \
  linkage template void stream_product<default_arch, Streams, Add>( \
      const T*, index, const T*, index, T*, index, index, index, index, const T*, stream_pair);
#define HEED_COMPILED_KERNELS(linkage, T)    \
  HEED_COMPILED_STRIPS(linkage, T, 1)        \
  HEED_COMPILED_STRIPS(linkage, T, 2)        \
  HEED_COMPILED_STRIPS(linkage, T, 3)        \
  HEED_COMPILED_STRIPS(linkage, T, 4)        \
  HEED_COMPILED_STREAM(linkage, T, 1, false) \
  HEED_COMPILED_STREAM(linkage, T, 1, true)  \
  HEED_COMPILED_STREAM(linkage, T, 2, false) \
  HEED_COMPILED_STREAM(linkage, T, 2, true)
#define HEED_COMPILED_CHECKS(linkage, T)                              \
  linkage template problem make_problem(                              \
      const tensor_view<const T, 4>&, const tensor_view<const T, 4>&, \
      const tensor_view<const T, 4>&, const tensor_view<T, 4>&, const attend_options<T>&);
#define HEED_COMPILED_PRODUCT(linkage, T)                             \
  linkage template void eigen_product(const tensor_view<const T, 2>&, \
                                      const tensor_view<const T, 2>&, const tensor_view<T, 2>&);

// With `extern` they are declared, without it compiled.
#define HEED_COMPILED(linkage)              \
  namespace heed::inline HEED_ABI::kernel { \
  HEED_COMPILED_KERNELS(linkage, float)     \
  HEED_COMPILED_KERNELS(linkage, double)    \
  }                                         \
  namespace heed::inline HEED_ABI {         \
  HEED_COMPILED_CHECKS(linkage, float)      \
  HEED_COMPILED_CHECKS(linkage, double)     \
  }                                         \
  namespace heed::inline HEED_ABI::layers { \
  HEED_COMPILED_PRODUCT(linkage, float)     \
  HEED_COMPILED_PRODUCT(linkage, double)    \
  }

HEED_COMPILED(extern)
