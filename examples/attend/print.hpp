// What a person reads: one case in full, or many as rows of a table.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "run.hpp"

namespace attend_program {

enum class verdict { within, over, unchecked, not_built, broken };

// One row of the table; result is there unless the case is broken or its mechanism not built.
struct row {
  std::string name;
  verdict what = verdict::within;
  std::optional<outcome> result = {};
  std::string problem = {};  // why it could not run
};

// The lines of one case: shape, time and, against an expected output, errors.
void print_case(std::ostream& stream, const attend_case& c, const settings& s, const outcome& o);

// Prints a header, then a row for each case as it is handed in, then a summary. With `grad` a row
// says how the gradients did: the one that is farthest off.
class table {
 public:
  table(std::ostream& stream, std::size_t name_width, bool grad);
  void print(const row& r);
  void print_summary(const settings& s) const;

  int count(verdict v) const { return counts_[static_cast<std::size_t>(v)]; }

 private:
  void print_worst(const outcome& o) const;

  std::ostream& stream_;
  int name_width_;
  bool grad_;
  int counts_[5] = {};
  std::vector<std::string> missing_;  // what is not built, each once
};

}  // namespace attend_program
