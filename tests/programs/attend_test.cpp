// heed-attend as its user meets it: what it prints and writes, and its exit statuses.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"
#include "programs/program.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("heed-attend writes out and lse and reports the error") {
  for (const std::string name :
       {"rope_half_B2_T7_H2x2_D8_th10000", "softmax_full_B1_T7_H4x1_D16_S33",
        "alibi_B1_T33_H3x3_D8", "rel_B1_T33_H2x2_D16_rel8ext"}) {
    CAPTURE(name);
    const attend_bench b(name);
    const golden_case c(b.input);
    const std::vector<heed::index> rows = {c.integer("B"), c.integer("T"), c.integer("Hq")};
    const heed::io::npy_array expected = c.tensor<double>("out");

    const finished single = b.run({b.input, "--out", b.results / "f32"});
    CHECK(single.status == 0);
    CHECK(single.err.empty());
    for (const char* part : {"shape ", "time ", "GFLOP/s", "relative ", "out.npy", "lse.npy"}) {
      CHECK_THAT(single.out, ContainsSubstring(part));
    }
    const auto out = heed::io::read_npy(b.results / "f32" / "out.npy");
    CHECK(out.type() == heed::io::dtype::f32);
    CHECK(relative_error(out, expected) < 3e-6);
    CHECK(relative_error(out, expected) > 0);
    const auto lse = heed::io::read_npy(b.results / "f32" / "lse.npy");
    CHECK(lse.extents() == rows);

    CHECK(b.run({b.input, "--dtype", "f64", "--out", b.results}).status == 0);
    const auto wide = heed::io::read_npy(b.results / "out.npy");
    CHECK(wide.type() == heed::io::dtype::f64);
    CHECK(relative_error(wide, expected) < 1e-13);
    CHECK(relative_error(lse, heed::io::read_npy(b.results / "lse.npy")) < 1e-5);
  }
}

TEST_CASE("heed-attend writes the log-sum-exp of the scaled logits") {
  const attend_bench b("softmax_full_B1_T7_H4x1_D16_S33");
  REQUIRE(b.run({b.input, "--dtype", "f64", "--out", b.results}).status == 0);
  const golden_case c(b.input);
  const auto q = c.tensor<double>("q"), k = c.tensor<double>("k");
  const auto lse = heed::io::read_npy(b.results / "lse.npy");
  const auto row = q.view<double, 4>(), key = k.view<double, 4>();
  const auto found = lse.view<double, 3>();
  for (heed::index i = 0; i < 7; ++i) {
    for (heed::index h = 0; h < 4; ++h) {
      double sum = 0;
      for (heed::index j = 0; j < 33; ++j) {
        double logit = 0;
        for (heed::index d = 0; d < 16; ++d) logit += row(0, i, h, d) * key(0, j, 0, d) / 4;
        sum += std::exp(logit);
      }
      CHECK(std::abs(found(0, i, h) - std::log(sum)) < 1e-12);
    }
  }
}

TEST_CASE("heed-attend: the same bytes from any number of threads") {
  const attend_bench b("softmax_causal_B1_T65_H2x2_D16_win8");
  REQUIRE(b.run({b.input, "--out", b.results / "1"}).status == 0);
  REQUIRE(b.run({b.input, "--threads", "3", "--out", b.results / "3"}).status == 0);
  for (const char* file : {"out.npy", "lse.npy"}) {
    CHECK(slurp(b.results / "1" / file) == slurp(b.results / "3" / file));
  }
}

TEST_CASE("heed-attend: an error over the tolerance is status 1, and the result is there") {
  const attend_bench b;
  const finished strict = b.run({b.input, "--tolerance", "1e-12", "--out", b.results});
  CHECK(strict.status == 1);
  CHECK_THAT(strict.out, ContainsSubstring("OVER TOLERANCE"));
  CHECK(fs::exists(b.results / "out.npy"));
  CHECK(b.run({b.input, "--tolerance", "1e-3"}).status == 0);

  // Another case's output, as what is expected.
  fs::copy(b.input / "dout.npy", b.input / "out.npy", fs::copy_options::overwrite_existing);
  CHECK(b.run({b.input}).status == 1);
  fs::remove(b.input / "out.npy");
  const finished unchecked = b.run({b.input, "--tolerance", "0"});
  CHECK(unchecked.status == 0);
  CHECK_THAT(unchecked.out, !ContainsSubstring("relative"));
}

TEST_CASE("heed-attend: a NaN that nobody expected is over every tolerance") {
  const attend_bench b;
  std::string v = slurp(b.input / "v_f32.npy");
  v.replace(v.size() - 4, 4, "\xff\xff\xff\xff");
  spill(b.input / "v_f32.npy", v);
  CHECK(b.run({b.input, "--tolerance", "1e30"}).status == 1);
}

TEST_CASE("heed-attend --all prints a row for every case below a folder") {
  const attend_bench b;
  const std::string all = (b.top / "many").string();
  fs::create_directories(b.top / "many" / "deeper");
  const auto add = [&](const std::string& name) {
    fs::copy(golden_folder() / name, b.top / "many" / "deeper" / name);
    return b.top / "many" / "deeper" / name;
  };
  CHECK(b.run({"--all", all}).status == 2);  // no case at all

  add("softmax_causal_B1_T2_H2x2_D16");
  const fs::path rope = add("rope_half_B2_T7_H2x2_D8_th10000");
  const finished good = b.run({"--all", all, "--dtype", "f64"});
  CHECK(good.status == 0);
  CHECK_THAT(good.out, ContainsSubstring("softmax_causal_B1_T2_H2x2_D16") &&
                           ContainsSubstring("rope_half_B2_T7_H2x2_D8_th10000") &&
                           ContainsSubstring("2 cases in float64: 2 within tolerance"));

  const finished strict = b.run({"--all", all, "--tolerance", "1e-30"});
  CHECK(strict.status == 1);
  CHECK_THAT(strict.out, ContainsSubstring("2 over tolerance"));

  fs::remove(rope / "q_f32.npy");
  const finished broken = b.run({"--all", all});
  CHECK(broken.status == 2);
  CHECK_THAT(broken.out, ContainsSubstring("1 within tolerance, 1 could not run") &&
                             ContainsSubstring("q_f32.npy: no such file"));
}

TEST_CASE("heed-attend --all: every golden case is within its tolerance") {
  const attend_bench b;
  for (const char* type : {"f32", "f64"}) {
    const finished f = b.run({"--all", golden_folder(), "--dtype", type});
    INFO(f.out);
    CHECK(f.status == 0);
    CHECK_THAT(f.out, !ContainsSubstring("OVER TOLERANCE") && !ContainsSubstring("ERROR"));
  }
}

}  // namespace heed_test
