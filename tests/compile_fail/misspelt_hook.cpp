// expect: lists hook::forward but its rows has no member of that name
#include "heed/attend.hpp"

struct mechanism {
  static constexpr heed::place where = heed::place::logits;
  static constexpr heed::hook hooks = heed::hook::forward;
  void foward(const auto&) const {}
};

void call(const heed::tensor_view<float, 4>& q) {
  heed::attend(q, q, q, q, {}, mechanism{});
}
