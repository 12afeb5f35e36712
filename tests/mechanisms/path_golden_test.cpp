// PaTH, alone and with both conventions of FoX's gate, on the golden cases.
#include "compare.hpp"
#include "golden.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/path.hpp"

namespace heed_test {

namespace {

// Rows [begin, end) of a case as queries, with the keys up to `end`.
template <class T>
double golden_error(const golden_case& c, index chunk, index block, index begin, index end) {
  const auto q = c.tensor<T>("q"), k = c.tensor<T>("k"), v = c.tensor<T>("v");
  const auto w = c.tensor<T>("w"), beta = c.tensor<T>("beta");
  const auto expected = c.tensor<double>("out");
  const auto wanted = expected.template view<double, 4>().slice(1, begin, end);
  std::vector<T> out(static_cast<std::size_t>(wanted.size()));
  const heed::tensor_view<T, 4> result(out, wanted.extents());
  const heed::path<T> path{w.template view<T, 4>().slice(1, 0, end),
                           beta.template view<T, 3>().slice(1, 0, end), chunk, block};
  const auto run = [&](const auto&... mechanisms) {
    heed::attend(q.template view<T, 4>().slice(1, begin, end),
                 k.template view<T, 4>().slice(1, 0, end), v.template view<T, 4>().slice(1, 0, end),
                 result, {.mask = heed::causal(), .scale = c.real("scale")}, mechanisms...);
  };
  if (c.has("gate")) {
    const auto g = c.tensor<T>("g");
    const bool inside = c.text("gate") == "inside_scale";
    run(path, heed::fox<T>{g.template view<T, 3>().slice(1, 0, end),
                           inside ? heed::gate::inside_scale : heed::gate::outside_scale});
  } else {
    run(path);
  }
  return relative_error(result, wanted);
}

template <class T>
void check_case(const golden_case& c, double allowed) {
  const index tokens = c.integer("T");
  for (const auto& [chunk, block] : {std::array<index, 2>{0, 0}, {3, 6}, {16, 32}}) {
    CHECK(golden_error<T>(c, chunk, block, 0, tokens) <= allowed);
    if (!c.has("decode_prefill")) continue;
    const index prefill = c.integer("decode_prefill");
    CHECK(golden_error<T>(c, chunk, block, 0, prefill) <= allowed);
    for (index i = prefill; i < tokens; ++i) {
      CHECK(golden_error<T>(c, chunk, block, i, i + 1) <= allowed);
    }
  }
}

}  // namespace

TEST_CASE("path: golden cases") {
  int number = 0, gated = 0;
  for (const golden_case& c : golden_cases("path_")) {
    CAPTURE(c.name());
    check_case<float>(c, 5e-6);
    check_case<double>(c, 1e-12);
    ++number;
    gated += c.has("gate") ? 1 : 0;
  }
  CHECK(number >= 18);
  CHECK(gated >= 8);
}

}  // namespace heed_test
