// heed-attend as its user meets it: what it prints, writes, refuses, and its exit statuses.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"

namespace heed_test {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void spill(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

struct finished {
  int status = -1;
  std::string out, err;
};

// A folder for one test: a copy of a golden case that may be spoilt, and room for results.
class bench {
 public:
  explicit bench(const std::string& name = "rope_half_B2_T7_H2x2_D8_th10000") {
    fs::create_directories(top);
    fs::copy(golden_folder() / name, input);
  }
  bench(const bench&) = delete;
  bench& operator=(const bench&) = delete;
  ~bench() { fs::remove_all(top); }

  // Runs the program; arguments are words without quotes in them.
  finished run(const std::vector<std::string>& arguments) const {
    std::string line = quoted(HEED_ATTEND_PROGRAM);
    for (const std::string& word : arguments) line.append(" ").append(quoted(word));
    line.append(" >").append(quoted(top / "stdout"));
    line.append(" 2>").append(quoted(top / "stderr"));
    const int status = std::system(line.c_str());
    REQUIRE(WIFEXITED(status));
    return {WEXITSTATUS(status), slurp(top / "stdout"), slurp(top / "stderr")};
  }

  // The case is refused with this status and one line that holds every part; nothing is written.
  void refused(int status, const std::vector<std::string>& parts) const {
    const finished f = run({input, "--out", results});
    CAPTURE(f.err);
    CHECK(f.status == status);
    CHECK(f.out.empty());
    CHECK(std::ranges::count(f.err, '\n') == 1);
    for (const std::string& part : parts) CHECK_THAT(f.err, ContainsSubstring(part));
    CHECK_FALSE(fs::exists(results));
  }

  // case.txt with a line's value changed, or the line added.
  void set(const std::string& key, const std::string& value) const {
    std::string text = "\n" + slurp(input / "case.txt");
    const std::size_t at = text.find("\n" + key + "=");
    if (at == std::string::npos) {
      text += key + "=" + value + "\n";
    } else {
      const std::size_t from = at + key.size() + 2;
      text.replace(from, text.find('\n', from) - from, value);
    }
    spill(input / "case.txt", text.substr(1));
  }

  fs::path top = fs::temp_directory_path() / ("heed-attend-test-" + std::to_string(::getpid()));
  fs::path input = top / "input", results = top / "results";

 private:
  static std::string quoted(const fs::path& word) {
    return std::string("'").append(word.string()).append("'");
  }
};

// Largest error over largest expected magnitude.
double relative_error(const heed::io::npy_array& found, const heed::io::npy_array& expected) {
  REQUIRE(found.extents() == expected.extents());
  const heed::io::npy_array wide = found.as<double>();
  double error = 0, largest = 0;
  for (std::size_t n = 0; n < expected.values<double>().size(); ++n) {
    const double want = expected.values<double>()[n];
    const double difference = std::abs(wide.values<double>()[n] - want);
    REQUIRE_FALSE(std::isnan(difference));
    error = std::max(error, difference);
    largest = std::max(largest, std::abs(want));
  }
  return error / largest;
}

}  // namespace

TEST_CASE("heed-attend writes out and lse and reports the error") {
  for (const std::string name :
       {"rope_half_B2_T7_H2x2_D8_th10000", "softmax_full_B1_T7_H4x1_D16_S33",
        "alibi_B1_T33_H3x3_D8", "rel_B1_T33_H2x2_D16_rel8ext"}) {
    CAPTURE(name);
    const bench b(name);
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
  const bench b("softmax_full_B1_T7_H4x1_D16_S33");
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
  const bench b("softmax_causal_B1_T65_H2x2_D16_win8");
  REQUIRE(b.run({b.input, "--out", b.results / "1"}).status == 0);
  REQUIRE(b.run({b.input, "--threads", "3", "--out", b.results / "3"}).status == 0);
  for (const char* file : {"out.npy", "lse.npy"}) {
    CHECK(slurp(b.results / "1" / file) == slurp(b.results / "3" / file));
  }
}

TEST_CASE("heed-attend: an error over the tolerance is status 1, and the result is there") {
  const bench b;
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
  const bench b;
  std::string v = slurp(b.input / "v_f32.npy");
  v.replace(v.size() - 4, 4, "\xff\xff\xff\xff");
  spill(b.input / "v_f32.npy", v);
  CHECK(b.run({b.input, "--tolerance", "1e30"}).status == 1);
}

TEST_CASE("heed-attend: files that are missing or broken are status 2") {
  const bench b;
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
  const bench b;
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
  const bench b;
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
  refused_with("rope_style", "quarter", "rope_style=quarter");

  const std::string text = slurp(b.input / "case.txt");
  spill(b.input / "case.txt", text + "just words\n");
  b.refused(2, {"just words", "is not key=value"});
  spill(b.input / "case.txt", text + "T=7\n");
  b.refused(2, {"gives T a second time"});
}

TEST_CASE("heed-attend: keys that change nothing are let through") {
  const bench b;
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

TEST_CASE("heed-attend: every golden case runs, or its mechanism says it is not built") {
  int ran = 0;
  for (const golden_case& c : golden_cases()) {
    const bench b(c.name());
    const finished f = b.run({b.input, "--out", b.results});
    CAPTURE(c.name(), f.out, f.err);
    if (f.status == 3) {
      CHECK_THAT(f.err,
                 ContainsSubstring("not built yet") && ContainsSubstring(c.text("mechanism")));
      CHECK_FALSE(fs::exists(b.results));
    } else {
      CHECK(f.status == 0);
      ++ran;
    }
  }
  CHECK(ran >= 25);  // softmax, rope, alibi, rel
}

TEST_CASE("heed-attend: results go where they can, or nowhere") {
  const bench b;
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
  const bench b;
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
    const finished f = b.run(line);
    CAPTURE(f.err);
    CHECK(f.status == 2);
    CHECK(f.out.empty());
    CHECK(std::ranges::count(f.err, '\n') == 1);
  }
  const finished help = b.run({"--help"});
  CHECK(help.status == 0);
  CHECK_THAT(help.out, ContainsSubstring("usage: heed-attend"));
}

TEST_CASE("heed-attend --all prints a row for every case below a folder") {
  const bench b;
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
  const bench b;
  for (const char* type : {"f32", "f64"}) {
    const finished f = b.run({"--all", golden_folder(), "--dtype", type});
    INFO(f.out);
    CHECK(f.status == 0);
    CHECK_THAT(f.out, !ContainsSubstring("OVER TOLERANCE") && !ContainsSubstring("ERROR"));
  }
}

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
    const bench b(name);
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
  const bench b("fox_B1_T33_H4x2_D16_Dv8");
  REQUIRE(b.run({b.input, "--grad", "--out", b.results / "1"}).status == 0);
  REQUIRE(b.run({b.input, "--grad", "--threads", "3", "--out", b.results / "3"}).status == 0);
  for (const char* file : {"out.npy", "d_q.npy", "d_k.npy", "d_v.npy", "d_g.npy"}) {
    CHECK(slurp(b.results / "1" / file) == slurp(b.results / "3" / file));
  }
}

TEST_CASE("heed-attend --grad: a gradient over the tolerance is status 1") {
  const bench b("fox_B1_T33_H4x2_D16_Dv8");
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
  const bench b("fox_B2_T7_H2x2_D8");
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
  const bench b("fox_B2_T7_H2x2_D8");
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

TEST_CASE(
    "heed-attend --grad: every golden case is within its tolerance, or says what is missing") {
  int ran = 0;
  for (const golden_case& c : golden_cases()) {
    const bench b(c.name());
    const finished f = b.run({b.input, "--grad", "--out", b.results});
    CAPTURE(c.name(), f.out, f.err);
    if (f.status == 3) {
      CHECK_THAT(f.err, ContainsSubstring("the gradients of mechanism " + c.text("mechanism") +
                                          " are not built yet"));
      CHECK_FALSE(fs::exists(b.results));
    } else {
      CHECK(f.status == 0);
      ++ran;
    }
  }
  CHECK(ran >= 38);  // softmax, rope, alibi, rel, fox
  const bench b;
  for (const char* type : {"f32", "f64"}) {
    const finished f = b.run({"--all", golden_folder(), "--grad", "--dtype", type});
    INFO(f.out);
    CHECK(f.status == 0);
    CHECK_THAT(f.out, ContainsSubstring("worst gradient") && ContainsSubstring("  d_g  "));
    CHECK_THAT(f.out, !ContainsSubstring("OVER TOLERANCE") && !ContainsSubstring("ERROR"));
  }
}

}  // namespace heed_test
