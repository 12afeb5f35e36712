// expect: a mechanism must name its place
#include "heed/attend.hpp"

struct mechanism {
  static constexpr heed::hook hooks = heed::hook::forward;
  void forward(const auto&) const {}
};

void call(const heed::tensor_view<float, 4>& q) {
  heed::attend(q, q, q, q, {}, mechanism{});
}
