// FoX, alone and with RoPE, on the golden cases.
#include "compare.hpp"
#include "golden.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/rope.hpp"

using namespace heed_test;

namespace {

template <class T>
double golden_error(const golden_case& c) {
  const auto q = c.tensor<T>("q"), k = c.tensor<T>("k"), v = c.tensor<T>("v"), g = c.tensor<T>("g");
  const auto expected = c.tensor<double>("out");
  const auto wanted = expected.template view<double, 4>();
  std::vector<T> out(static_cast<std::size_t>(wanted.size()));
  const heed::tensor_view<T, 4> result(out, wanted.extents());
  heed::attend_options<T> options = {.mask = heed::causal(), .scale = c.real("scale")};
  if (c.has("window_size")) {
    options.mask = options.mask.window(c.integer("window_size") - 1, 0);
  }
  const heed::fox<T> gate{g.template view<T, 3>()};
  const auto run = [&](const auto&... mechanisms) {
    heed::attend(q.template view<T, 4>(), k.template view<T, 4>(), v.template view<T, 4>(), result,
                 options, mechanisms...);
  };
  if (c.has("rope_theta")) {
    run(heed::rope{c.real("rope_theta"), heed::rope_pairs::half, c.integer("rotary_dim"),
                   c.integer("rope_offset")},
        gate);
  } else {
    run(gate);
  }
  return relative_error(result, wanted);
}

}  // namespace

TEST_CASE("fox: golden cases") {
  int number = 0;
  for (const golden_case& c : golden_cases("fox_")) {
    CAPTURE(c.name());
    const bool resets = c.name_contains("resets");
    CHECK(golden_error<float>(c) <= (resets ? 2e-5 : 5e-6));
    CHECK(golden_error<double>(c) <= (resets ? 1e-11 : 1e-12));
    ++number;
  }
  CHECK(number >= 10);
}
