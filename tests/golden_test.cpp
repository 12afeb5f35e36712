// Every golden case as heed-attend runs it, outputs and gradients, in both types and with several
// sizes of blocks: the sources of the program are compiled into this test.
#include "attend/run.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"

namespace {

using attend_program::outcome;
using attend_program::settings;
using cases::case_folder;
using heed_test::golden_case;
using heed_test::golden_cases;

// A gradient that is 0 but for rounding is what sums that cancel leave; with closed gates CoPE's
// table gets 5e-6 in float from the published code, too. Blocks of a few rows and keys round at
// each of their many edges, and leave up to 8e-6 there, 2.6 times the bar.
double room(const golden_case& one, const settings& how, const std::string& tensor) {
  if (how.type != heed::io::dtype::f32 || how.tuning.rows == 0) return 1;
  const heed::io::npy_array expected = one.tensor<double>("d_" + tensor);
  for (const double x : expected.values<double>()) {
    if (std::abs(x) > 1e-10) return 1;
  }
  return 4;
}

outcome run(const golden_case& one, const settings& how) {
  outcome found = attend_program::run_case(case_folder(one.folder()), how);
  INFO("out: " << (found.error ? found.error->relative : -1));
  CHECK(found.error.has_value());
  CHECK((found.error && found.error->relative <= found.tolerance));
  const double bar = found.gradient_tolerance;
  for (const attend_program::gradient& g : found.gradients) {
    found.gradient_tolerance = bar * room(one, how, g.tensor);
    INFO("d_" << g.tensor << ": " << (g.error ? g.error->relative : -1));
    CHECK(g.error.has_value());
    CHECK(found.within_tolerance(g));
  }
  return found;
}

// Small sizes put many edges into a case; with the last, panels are wider than blocks of PaTH.
const std::vector<settings> sizes = {
    {.timed = false},
    {.timed = false, .tuning = {5, 7}, .path_chunk = 3, .path_block = 6},
    {.timed = false, .tuning = {16, 64}, .path_chunk = 16, .path_block = 32}};

void check(const std::string& prefix, std::size_t at_least) {
  const std::vector<golden_case> cases = golden_cases(prefix);
  CHECK(cases.size() >= at_least);
  for (const golden_case& one : cases) {
    for (settings how : sizes) {
      for (const heed::io::dtype type : {heed::io::dtype::f32, heed::io::dtype::f64}) {
        how.type = type;
        how.grad = true;
        CAPTURE(one.name(), how.tuning.rows, how.tuning.panel, type == heed::io::dtype::f32);
        CHECK(run(one, how).gradients.size() >= 3);
      }
    }
  }
}

}  // namespace

TEST_CASE("golden: softmax") {
  check("softmax_", 8);
}
TEST_CASE("golden: rope") {
  check("rope_", 6);
}
TEST_CASE("golden: alibi") {
  check("alibi_", 2);
}
TEST_CASE("golden: relative") {
  check("rel_", 3);
}
TEST_CASE("golden: fox") {
  check("fox_", 10);
}
TEST_CASE("golden: path") {
  check("path_", 18);
}
TEST_CASE("golden: cope") {
  check("cope_", 20);
}
TEST_CASE("golden: mta") {
  check("mta_", 20);
}
