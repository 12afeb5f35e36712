// The reference in double, which most tests call, compiled once.
#pragma once

#include "heed/reference/attend.hpp"

#define HEED_TEST_REFERENCE(linkage)                                                        \
  namespace heed::inline HEED_ABI::reference {                                              \
  linkage template void attend<double>(std::type_identity_t<tensor_view<const double, 4>>,  \
                                       std::type_identity_t<tensor_view<const double, 4>>,  \
                                       std::type_identity_t<tensor_view<const double, 4>>,  \
                                       tensor_view<double, 4>,                              \
                                       const std::type_identity_t<attend_options<double>>&, \
                                       const steps<double>&);                               \
  }

HEED_TEST_REFERENCE(extern)
