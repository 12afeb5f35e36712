// What heed-attend refuses, with which sentence and status, and what it leaves alone.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"
#include "programs/program.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("heed-attend: files that are missing or broken are status 2") {
  const attend_bench b;
  const fs::path k = b.input / "k_f32.npy";
  SECTION("missing") {
    fs::remove(k);
    b.refused(2, {k.string(), "no such file"});
  }
  SECTION("truncated data") {
    fs::resize_file(k, fs::file_size(k) - 1);
    b.refused(2, {k.string(), "truncated"});
  }
  SECTION("truncated header") {
    fs::resize_file(k, 20);
    b.refused(2, {k.string(), "truncated"});
  }
  SECTION("empty") {
    fs::resize_file(k, 0);
    b.refused(2, {k.string(), "not a .npy file"});
  }
  SECTION("bytes too many") {
    fs::resize_file(k, fs::file_size(k) + 8);
    b.refused(2, {k.string(), "bytes follow the data"});
  }
  SECTION("wrong type") {
    fs::copy(b.input / "k.npy", k, fs::copy_options::overwrite_existing);
    b.refused(2, {k.string(), "dtype is <f8, expected <f4"});
  }
  SECTION("broken expected output") {
    fs::resize_file(b.input / "out.npy", 200);
    b.refused(2, {(b.input / "out.npy").string(), "truncated"});
  }
  SECTION("no case.txt") {
    fs::remove(b.input / "case.txt");
    b.refused(2, {(b.input / "case.txt").string(), "no such file"});
  }
  SECTION("no folder") {
    fs::remove_all(b.input);
    b.refused(2, {b.input.string(), "no such folder"});
  }
}

TEST_CASE("heed-attend: shapes that disagree are status 2") {
  const attend_bench b;
  SECTION("case.txt against the tensors") {
    b.set("T", "8");
    b.refused(2, {"out.npy", "shape is (2, 7, 2, 8), expected (2, 8, 2, 8)"});
    fs::remove(b.input / "out.npy");
    b.refused(2, {"q_f32.npy", "shape is (2, 7, 2, 8), expected (2, 8, 2, 8)"});
  }
  SECTION("one tensor against the others") {
    fs::copy(golden_folder() / "softmax_causal_B1_T2_H2x2_D16" / "v_f32.npy", b.input / "v_f32.npy",
             fs::copy_options::overwrite_existing);
    b.refused(2, {"v_f32.npy", "shape is (1, 2, 2, 16), expected (2, 7, 2, 8)"});
  }
  SECTION("the description of a file") {
    b.set("file.q_f32", "float32 2 7 2 9");
    b.refused(2, {"q_f32.npy", "float32 2 7 2 8", "float32 2 7 2 9"});
  }
  SECTION("the mechanism's own parameters") {
    b.set("rotary_dim", "10");
    b.refused(2, {b.input.string(), "rotary_dim"});
  }
}

TEST_CASE("heed-attend: a case.txt that cannot be followed is status 2") {
  const attend_bench b;
  const auto refused_with = [&](const std::string& key, const std::string& value,
                                const std::string& why) {
    CAPTURE(key, value);
    const std::string before = slurp(b.input / "case.txt");
    b.set(key, value);
    b.refused(2, {(b.input / "case.txt").string(), why});
    spill(b.input / "case.txt", before);
  };
  refused_with("mechanism", "rotor", "unknown mechanism rotor");
  refused_with("mechanism", "none", "mechanism is missing");
  refused_with("dropout", "0.1", "unknown key for mechanism rope: dropout=0.1");
  refused_with("rel", "1", "unknown key for mechanism rope: rel=1");
  refused_with("npos", "4", "unknown key for mechanism rope: npos=4");
  refused_with("T", "seven", "T=seven is not an integer");
  refused_with("T", "7.0", "T=7.0 is not an integer");
  refused_with("T", "-7", "T=-7 is negative");
  refused_with("T", "99999999999999999999", "is not an integer");
  refused_with("D", "0", "D=0");
  refused_with("scale", "nan", "scale=nan is not a finite number");
  refused_with("causal", "yes", "causal=yes is not 0 or 1");
  refused_with("causal", "none", "causal is missing");
  refused_with("window_size", "-2", "window_size=-2 is negative");
  refused_with("rope_style", "quar\tter", "rope_style=quar?ter is not half or interleaved");

  const std::string text = slurp(b.input / "case.txt");
  spill(b.input / "case.txt", text + "just words\n");
  b.refused(2, {"just words", "is not key=value"});
  spill(b.input / "case.txt", text + "T=7\n");
  b.refused(2, {"gives T a second time"});
}

TEST_CASE("heed-attend: keys that change nothing are let through") {
  const attend_bench b;
  for (const char* key : {"dropout", "rel", "some_future_key"}) {
    b.set(key, "0");
    CHECK(b.run({b.input}).status == 0);
    b.set(key, "none");
    CHECK(b.run({b.input}).status == 0);
  }
  b.set("block_size", "64");
  b.set("via", "fox");
  b.set("decode_prefill", "3");
  b.set("file.notes", "text");
  CHECK(b.run({b.input}).status == 0);
}

TEST_CASE("heed-attend: results go where they can, or nowhere") {
  const attend_bench b;
  SECTION("not over the expected output") {
    const std::string before = slurp(b.input / "out.npy");
    const finished f = b.run({b.input, "--out", b.input});
    CHECK(f.status == 2);
    CHECK_THAT(f.err, ContainsSubstring("overwrite"));
    CHECK(slurp(b.input / "out.npy") == before);
    CHECK_FALSE(fs::exists(b.input / "lse.npy"));
  }
  SECTION("not below a file") {
    const finished f = b.run({b.input, "--out", b.input / "case.txt" / "results"});
    CHECK(f.status == 2);
    CHECK(f.out.empty());
    CHECK(std::ranges::count(f.err, '\n') == 1);
  }
  SECTION("both or none") {
    fs::create_directories(b.results / "lse.npy");  // a folder is in the way
    const finished f = b.run({b.input, "--out", b.results});
    CHECK(f.status == 2);
    CHECK_THAT(f.err, ContainsSubstring("lse.npy: cannot be written"));
    CHECK_FALSE(fs::exists(b.results / "out.npy"));
  }
}

TEST_CASE("heed-attend: command lines that make no sense are status 2") {
  const attend_bench b;
  const std::string input = b.input.string();
  const std::vector<std::vector<std::string>> lines = {
      {},
      {input, input},
      {input, "--frobnicate"},
      {input, "--out"},
      {input, "--dtype", "f16"},
      {input, "--threads", "0"},
      {input, "--threads", "2x"},
      {input, "--threads", "-1"},
      {input, "--threads", "100000"},
      {input, "--tolerance", "nan"},
      {input, "--tolerance", "-1"},
      {"--all"},
      {"--all", input, input},
      {"--all", input, "--out", b.results.string()},
      {"--all", (b.top / "nothing").string()},
  };
  for (const auto& line : lines) {
    b.refused_line(line);
  }
  const finished help = b.run({"--help"});
  CHECK(help.status == 0);
  CHECK_THAT(help.out, ContainsSubstring("usage: heed-attend"));
}

}  // namespace heed_test
