// Every golden case of a whole layer as heed-layer runs it: forward, gradients, and decoding from
// several prefills, in both types.
#include "catch.hpp"
#include "layer/run.hpp"
#include "layers/cases.hpp"

namespace {

using heed_test::golden_case;
using layer_program::outcome;
using layer_program::settings;

void check_case(const golden_case& one, const settings& how) {
  const outcome o = layer_program::run_case(layer_program::case_folder(one.folder()), how);
  REQUIRE(o.error.has_value());
  INFO("y " << o.error->relative);
  CHECK(o.error->relative <= o.tolerance);
  CHECK(o.decode_error.has_value() == how.prefill.has_value());
  if (o.decode_error) {
    INFO("decode " << o.decode_error->relative);
    CHECK(o.decode_error->relative <= o.tolerance);
  }
  for (const layer_program::gradient& g : o.gradients) {
    REQUIRE(g.error.has_value());
    INFO("d_" << g.tensor << " " << g.error->relative);
    CHECK(g.error->relative <= o.gradient_tolerance);
  }
  CHECK(o.gradients.size() >= 5);
}

void check(const std::string& layer, std::size_t at_least) {
  const std::vector<golden_case> cases = heed_test::golden_layers(layer + "_");
  CHECK(cases.size() >= at_least);
  for (const golden_case& one : cases) {
    const heed::index T = one.integer("T");
    std::vector<std::optional<heed::index>> prefills = {std::nullopt};
    if (T > 1) prefills = {1, T / 2, T - 1};
    for (const std::optional<heed::index>& prefill : prefills) {
      for (const heed::io::dtype type : {heed::io::dtype::f32, heed::io::dtype::f64}) {
        CAPTURE(one.name(), prefill.value_or(0), type == heed::io::dtype::f32);
        check_case(one, {.type = type, .grad = true, .prefill = prefill});
      }
    }
  }
}

}  // namespace

TEST_CASE("golden layers: path") {
  check("path", 10);
}
TEST_CASE("golden layers: fox") {
  check("fox", 7);
}
TEST_CASE("golden layers: foxpro") {
  check("foxpro", 10);
}
TEST_CASE("golden layers: cope") {
  check("cope", 10);
}
TEST_CASE("golden layers: mta") {
  check("mta", 12);
}
