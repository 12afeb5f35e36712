// What a person reads: one case in full, or many as rows of a table.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "run.hpp"

namespace attend_program {

using row = cases::row<outcome>;

// The lines of one case: shape, time and, against an expected output, errors.
void print_case(std::ostream& stream, const case_folder& c, const settings& s, const outcome& o);

// Prints a header, then a row for each case as it is handed in, then a summary. With
// settings::grad a row says how the gradients did: the one that is farthest off.
class table {
 public:
  table(std::ostream& stream, std::size_t name_width, const settings& s);
  void print(const row& r);
  void print_summary(const settings& s) const;

  int count(cases::verdict v) const { return count_.count(v); }

 private:
  void print_worst(const outcome& o) const;

  std::ostream& stream_;
  int name_width_;
  bool grad_;
  cases::tally count_;
  std::vector<std::string> missing_;  // what is not built, each once
};

}  // namespace attend_program
