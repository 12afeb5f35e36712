// expect: forward belongs to a mechanism of place logits or probs
#include "heed/attend.hpp"

struct mechanism {
  static constexpr heed::place where = heed::place::inputs;
  static constexpr heed::hook hooks = heed::hook::forward;
  void forward(const auto&) const {}
};

void call(const heed::tensor_view<float, 4>& q) {
  heed::attend(q, q, q, q, {}, mechanism{});
}
