#include "heed/reference/rope.hpp"

#include "reference/golden_call.hpp"
#include "reference/small_call.hpp"

namespace heed_test {

TEST_CASE("reference rope: golden cases") {
  check_golden("rope_");
  check_golden("fox_rope_");
}

TEST_CASE("reference rope: only distances matter") {
  auto near = small_call::random(1, 1, 5, 5, 2, 2, 8, 3);
  auto far = small_call::random(1, 1, 5, 5, 2, 2, 8, 3);
  near.options.mask = far.options.mask = heed::causal();
  near.run(heed::rope{.rotary_dim = 6});
  far.run(heed::rope{.rotary_dim = 6, .offset = 100});
  CHECK(close(near.out, far.out, 1e-13));
}

TEST_CASE("reference rope: refuses what it cannot rotate") {
  auto c = small_call::random(1, 1, 2, 2, 1, 1, 5, 1);
  CHECK_THROWS_AS(c.run(heed::rope{}), heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::rope{.rotary_dim = 6}), heed::shape_error);
  CHECK_THROWS_AS(c.run(heed::rope{.theta = 0, .rotary_dim = 4}), heed::shape_error);
  CHECK(std::isnan(c.out(0, 0, 0, 0)));
  CHECK_NOTHROW(c.run(heed::rope{.rotary_dim = 4}));
}

}  // namespace heed_test
