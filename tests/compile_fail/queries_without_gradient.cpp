// expect: attend_grad: queries and queries_grad belong together
#include "heed/attend_grad.hpp"

struct mechanism {
  static constexpr heed::place where = heed::place::inputs;
  static constexpr heed::hook hooks = heed::hook::queries;
  template <class T>
  void queries(heed::index, heed::index, heed::index, T*, heed::index) const {}
};

void call(const heed::tensor_view<float, 4>& q, const heed::tensor_view<float, 3>& lse) {
  heed::attend_grad(q, q, q, q, lse, q, {.q = q}, {}, mechanism{});
}
