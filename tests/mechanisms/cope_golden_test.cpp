// CoPE, alone and with learned relative positions, on the golden cases.
#include "compare.hpp"
#include "golden.hpp"
#include "heed/mechanisms/cope.hpp"
#include "heed/mechanisms/relative.hpp"

using namespace heed_test;

namespace {

template <class T>
double golden_error(const golden_case& c) {
  const auto q = c.tensor<T>("q"), k = c.tensor<T>("k"), v = c.tensor<T>("v");
  const auto table = c.tensor<T>("pos_emb");
  const auto expected = c.tensor<double>("out");
  const auto wanted = expected.template view<double, 4>();
  std::vector<T> out(static_cast<std::size_t>(wanted.size()));
  const heed::tensor_view<T, 4> result(out, wanted.extents());
  const heed::attend_options<T> options = {.mask = c.flag("causal") ? heed::causal() : heed::full(),
                                           .scale = c.real("scale")};
  const auto scale = c.flag("nodiv") ? heed::cope_scale::undivided : heed::cope_scale::divided;
  heed::cope<T> m = c.flag("per_head_pos_emb") ? heed::cope<T>(table.template view<T, 3>(), scale)
                                               : heed::cope<T>(table.template view<T, 2>(), scale);
  heed::io::npy_array u;
  if (c.flag("sep_key")) {
    u = c.tensor<T>("key_cope");
    m.gates = heed::cope_gates::separate_keys;
    m.gate_keys = u.template view<T, 4>();
  }
  if (c.flag("val_gates")) m.gates = heed::cope_gates::values;
  const auto run = [&](const auto&... mechanisms) {
    heed::attend(q.template view<T, 4>(), k.template view<T, 4>(), v.template view<T, 4>(), result,
                 options, mechanisms...);
  };
  if (c.flag("rel")) {
    const auto e = c.tensor<T>("rel_emb");
    run(m, heed::relative<T>{e.template view<T, 2>(), c.flag("rel_extend")});
  } else {
    run(m);
  }
  return relative_error(result, wanted);
}

}  // namespace

TEST_CASE("cope: golden cases") {
  int number = 0;
  for (const golden_case& c : golden_cases("cope_")) {
    CAPTURE(c.name());
    // Logits of 50 and more: their own rounding is amplified by exp.
    const bool large = c.name_contains("saturated") || c.name_contains("wide");
    CHECK(golden_error<float>(c) <= (large ? 3e-5 : 5e-6));
    CHECK(golden_error<double>(c) <= 1e-12);
    ++number;
  }
  CHECK(number >= 20);
}
