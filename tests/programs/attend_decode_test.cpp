// heed-attend --decode: cases through a cache, a part at once and the rest token by token.
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"
#include "heed/io/npy.hpp"
#include "programs/program.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("heed-attend --decode: every causal golden case, from its middle on") {
  const attend_bench b;
  for (const std::string type : {"f32", "f64"}) {
    const finished f =
        b.run({"--all", golden_folder().string(), "--decode", "half", "--dtype", type});
    INFO(f.out << f.err);
    CHECK(f.status == 0);
    CHECK_THAT(f.out, ContainsSubstring(" within tolerance\n"));
    CHECK_THAT(f.out, !ContainsSubstring("over tolerance"));
    // Those that are not causal, and those of one token, are left out.
    CHECK_THAT(f.out, ContainsSubstring("mta_"));
    CHECK_THAT(f.out, !ContainsSubstring("softmax_full"));
    CHECK_THAT(f.out, !ContainsSubstring("_T1_"));
  }
}

TEST_CASE("heed-attend --decode: the golden cases made for it, where they say") {
  int cases = 0;
  for (const golden_case& one : golden_cases()) {
    if (!one.name_contains("decode")) continue;
    ++cases;
    const attend_bench b(one.name());
    const std::string from = one.name().substr(one.name().find("decode") + 6);
    const finished f = b.run({b.input.string(), "--decode", from, "--dtype", "f64", "--threads",
                              "2", "--out", b.results.string()});
    INFO(one.name() << "\n" << f.out << f.err);
    CHECK(f.status == 0);
    const auto expected = one.tensor<double>("out");
    const auto found = heed::io::read_npy(b.results / "out.npy");
    CHECK(found.extents() == expected.extents());
    CHECK(relative_error(found, expected) < 1e-12);
    CHECK(std::filesystem::exists(b.results / "lse.npy"));
  }
  CHECK(cases > 3);
}

TEST_CASE("heed-attend --decode: what cannot be decoded is refused") {
  const attend_bench b;  // T = 7
  const std::string input = b.input.string();
  CHECK(b.run({input, "--decode", "6"}).status == 0);
  CHECK(b.run({input, "--decode", "1"}).status == 0);
  b.refused_line({input, "--decode", "7"});
  b.refused_line({input, "--decode", "0"});
  b.refused_line({input, "--decode", "-1"});
  b.refused_line({input, "--decode", "some"});
  b.refused_line({input, "--decode"});
  b.refused_line({input, "--decode", "3", "--grad"});
  b.set("causal", "0");
  b.refused_line({input, "--decode", "3"});
}

}  // namespace heed_test
