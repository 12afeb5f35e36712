// expect: q, k, v and out must have one element type
#include "heed/attend.hpp"

void call(const heed::tensor_view<float, 4>& q, const heed::tensor_view<double, 4>& k) {
  heed::attend(q, k, k, q);
}
