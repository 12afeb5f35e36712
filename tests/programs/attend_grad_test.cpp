// heed-attend --grad: the gradients that it writes, reports and refuses.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"
#include "programs/program.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("heed-attend --grad writes every gradient and reports the error of each") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"softmax_full_B1_T7_H4x1_D16_S33", {}},
      {"rope_half_B2_T7_H2x2_D8_th10000", {}},
      {"alibi_B1_T33_H3x3_D8", {}},
      {"rel_B1_T33_H2x2_D16_rel8ext", {"rel_emb"}},
      {"fox_B1_T33_H4x2_D16_Dv8", {"g"}},
      {"fox_rope_half_B1_T65_H2x2_D8_th10000", {"g"}},
  };
  for (const auto& [name, own] : cases) {
    CAPTURE(name);
    const attend_bench b(name);
    const golden_case c(b.input);
    std::vector<std::string> tensors = {"q", "k", "v"};
    tensors.insert(tensors.end(), own.begin(), own.end());
    const finished single = b.run({b.input, "--grad", "--out", b.results / "f32"});
    CHECK(single.status == 0);
    CHECK(single.err.empty());
    CHECK_THAT(single.out, ContainsSubstring("grad    "));
    CHECK(b.run({b.input, "--grad", "--dtype", "f64", "--out", b.results}).status == 0);
    for (const std::string& tensor : tensors) {
      CAPTURE(tensor);
      const std::string file = "d_" + tensor + ".npy";
      CHECK_THAT(single.out, ContainsSubstring("\nd_" + tensor) && ContainsSubstring(file));
      const auto expected = c.tensor<double>("d_" + tensor);
      const auto rough = heed::io::read_npy(b.results / "f32" / file);
      CHECK(rough.type() == heed::io::dtype::f32);
      CHECK(relative_error(rough, expected) < 2e-5);
      CHECK(relative_error(rough, expected) > 0);
      const auto exact = heed::io::read_npy(b.results / file);
      CHECK(exact.type() == heed::io::dtype::f64);
      CHECK(relative_error(exact, expected) < 1e-10);
    }
    // Without --grad there are none.
    REQUIRE(b.run({b.input, "--out", b.results / "plain"}).status == 0);
    CHECK_FALSE(fs::exists(b.results / "plain" / "d_q.npy"));
  }
}

TEST_CASE("heed-attend --grad: the same bytes from any number of threads") {
  const attend_bench b("fox_B1_T33_H4x2_D16_Dv8");
  REQUIRE(b.run({b.input, "--grad", "--out", b.results / "1"}).status == 0);
  REQUIRE(b.run({b.input, "--grad", "--threads", "3", "--out", b.results / "3"}).status == 0);
  for (const char* file : {"out.npy", "d_q.npy", "d_k.npy", "d_v.npy", "d_g.npy"}) {
    CHECK(slurp(b.results / "1" / file) == slurp(b.results / "3" / file));
  }
}

TEST_CASE("heed-attend --grad: a gradient over the tolerance is status 1") {
  const attend_bench b("fox_B1_T33_H4x2_D16_Dv8");
  // Gradients whose errors are below 1e-13 are right whatever the tolerance, but not in float.
  const finished strict = b.run({b.input, "--grad", "--tolerance", "1e-12"});
  CHECK(strict.status == 1);
  fs::copy(b.input / "g.npy", b.input / "d_g.npy", fs::copy_options::overwrite_existing);
  const finished wrong = b.run({b.input, "--grad", "--out", b.results});
  CHECK(wrong.status == 1);
  const std::size_t line = wrong.out.find("\nd_g ");
  REQUIRE(line != std::string::npos);
  CHECK_THAT(wrong.out.substr(line), ContainsSubstring("OVER TOLERANCE"));
  CHECK(wrong.out.find("OVER TOLERANCE") == wrong.out.rfind("OVER TOLERANCE"));
  CHECK(fs::exists(b.results / "d_g.npy"));

  fs::remove(b.input / "d_g.npy");
  CHECK(b.run({b.input, "--grad"}).status == 0);
  CHECK(b.run({"--all", b.input, "--grad"}).status == 0);
}

TEST_CASE("heed-attend --grad: a dout.npy that is missing or broken is status 2") {
  const attend_bench b("fox_B2_T7_H2x2_D8");
  const auto refused = [&](const std::string& why) {
    const finished f = b.run({b.input, "--grad", "--out", b.results});
    CAPTURE(f.err);
    CHECK(f.status == 2);
    CHECK_THAT(f.err, ContainsSubstring("dout_f32.npy") && ContainsSubstring(why));
    CHECK(std::ranges::count(f.err, '\n') == 1);
    CHECK_FALSE(fs::exists(b.results));
    CHECK(b.run({b.input}).status == 0);  // nobody asked for it
  };
  const fs::path dout = b.input / "dout_f32.npy";
  SECTION("missing") {
    fs::remove(dout);
    refused("no such file");
  }
  SECTION("truncated") {
    fs::resize_file(dout, fs::file_size(dout) - 4);
    refused("truncated");
  }
  SECTION("of another shape") {
    fs::copy(b.input / "g_f32.npy", dout, fs::copy_options::overwrite_existing);
    refused("shape is (2, 7, 2), expected (2, 7, 2, 8)");
  }
}

TEST_CASE("heed-attend --grad does not overwrite what is expected") {
  const attend_bench b("fox_B2_T7_H2x2_D8");
  fs::remove(b.input / "out.npy");
  const std::string before = slurp(b.input / "d_k.npy");
  fs::remove(b.input / "d_q.npy");
  const finished f = b.run({b.input, "--grad", "--out", b.input});
  CHECK(f.status == 2);
  CHECK_THAT(f.err, ContainsSubstring("overwrite the case's expected d_k.npy"));
  CHECK(slurp(b.input / "d_k.npy") == before);
  CHECK_FALSE(fs::exists(b.input / "out.npy"));

  fs::create_directories(b.results / "d_v.npy");  // a folder is in the way
  CHECK(b.run({b.input, "--grad", "--out", b.results}).status == 2);
  for (const char* file : {"out.npy", "lse.npy", "d_q.npy", "d_k.npy", "d_g.npy"}) {
    CHECK_FALSE(fs::exists(b.results / file));
  }
}

TEST_CASE("heed-attend --all --grad: every golden case is within its tolerance") {
  const attend_bench b;
  for (const char* type : {"f32", "f64"}) {
    const finished f = b.run({"--all", golden_folder(), "--grad", "--dtype", type});
    INFO(f.out);
    CHECK(f.status == 0);
    CHECK_THAT(f.out, ContainsSubstring("worst gradient") && ContainsSubstring("  d_g  "));
    CHECK_THAT(f.out, !ContainsSubstring("OVER TOLERANCE") && !ContainsSubstring("ERROR"));
  }
}

}  // namespace heed_test
