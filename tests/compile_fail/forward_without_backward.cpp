// expect: a mechanism of the list has forward but no backward
#include "heed/attend_grad.hpp"

struct mechanism {
  static constexpr heed::place where = heed::place::logits;
  static constexpr heed::hook hooks = heed::hook::forward;
  void forward(const auto&) const {}
};

void call(const heed::tensor_view<float, 4>& q, const heed::tensor_view<float, 3>& lse) {
  heed::attend_grad(q, q, q, q, lse, q, {.q = q}, {}, mechanism{});
}
