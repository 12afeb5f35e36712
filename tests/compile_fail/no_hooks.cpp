// expect: a mechanism must list its hooks
#include "heed/attend.hpp"

struct mechanism {
  static constexpr heed::place where = heed::place::logits;
  void forward(const auto&) const {}
};

void call(const heed::tensor_view<float, 4>& q) {
  heed::attend(q, q, q, q, {}, mechanism{});
}
