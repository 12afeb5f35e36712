#include "heed/heed.hpp"

void attend_in_two(const heed::tensor_view<const float, 4>& qkv,
                   const heed::tensor_view<float, 4>& out) {
  heed::attend(qkv, qkv, qkv, out, {.mask = heed::causal()});
}
