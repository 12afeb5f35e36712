// Running one of heed's programs as its user would: what it prints, writes, refuses.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "golden.hpp"
#include "scratch_folder.hpp"

namespace heed_test {

namespace fs = std::filesystem;

inline void spill(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

struct finished {
  int status = -1;
  std::string out, err;
};

// A program and a folder for one test of it: a copy of a case that may be spoilt, and room for
// results.
class program_bench {
 public:
  program_bench(fs::path program, const fs::path& original) : program_(std::move(program)) {
    fs::copy(original, input);
  }

  // Runs the program; arguments are words without quotes in them.
  finished run(const std::vector<std::string>& arguments) const {
    std::string line = quoted(program_);
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
    for (const std::string& part : parts)
      CHECK_THAT(f.err, Catch::Matchers::ContainsSubstring(part));
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

  // The command line is refused with status 2 and one line of text.
  void refused_line(const std::vector<std::string>& arguments) const {
    const finished f = run(arguments);
    CAPTURE(f.err);
    CHECK(f.status == 2);
    CHECK(f.out.empty());
    CHECK(std::ranges::count(f.err, '\n') == 1);
  }

 private:
  static std::string quoted(const fs::path& word) {
    return std::string("'").append(word.string()).append("'");
  }

  scratch_folder scratch_{"program"};
  fs::path program_;

 public:
  fs::path top = scratch_.path, input = top / "input", results = top / "results";
};

#ifdef HEED_ATTEND_PROGRAM
// heed-attend and a golden case.
struct attend_bench : program_bench {
  explicit attend_bench(const std::string& name = "rope_half_B2_T7_H2x2_D8_th10000")
      : program_bench(HEED_ATTEND_PROGRAM, golden_folder() / name) {}
};
#endif

// Largest error over largest expected magnitude.
inline double relative_error(const heed::io::npy_array& found,
                             const heed::io::npy_array& expected) {
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

}  // namespace heed_test
