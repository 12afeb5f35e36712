// expect: has a member forward that its `hooks` do not list
#include "heed/attend.hpp"

struct mechanism {
  static constexpr heed::place where = heed::place::logits;
  static constexpr heed::hook hooks = heed::hook::none;
  void forward(const auto&) const {}
};

void call(const heed::tensor_view<float, 4>& q) {
  heed::attend(q, q, q, q, {}, mechanism{});
}
