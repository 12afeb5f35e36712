// Every golden case as heed-attend runs it, outputs and gradients, in both types and with several
// sizes of blocks: the sources of the program are compiled into this test.
#include "attend/run.hpp"

#include "catch.hpp"
#include "golden.hpp"

namespace {

using attend_program::outcome;
using attend_program::settings;
using cases::case_folder;
using heed_test::golden_case;
using heed_test::golden_cases;

// Blocks of a few rows and keys round at each of their many edges.
double room(const settings& how) {
  return how.type == heed::io::dtype::f32 && how.tuning.rows != 0 ? 2 : 1;
}

outcome run(const golden_case& one, const settings& how) {
  outcome found = attend_program::run_case(case_folder(one.folder()), how);
  INFO("out: " << (found.error ? found.error->relative : -1));
  CHECK(found.error.has_value());
  CHECK((found.error && found.error->relative <= found.tolerance));
  found.gradient_tolerance *= room(how);
  for (const attend_program::gradient& g : found.gradients) {
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
