// What a person reads: one case in full, or many as rows of a table.
#pragma once

#include <iosfwd>
#include <string>

#include "run.hpp"

namespace layer_program {

using row = cases::row<outcome>;

void print_case(std::ostream& stream, const case_folder& c, const settings& s, const outcome& o);

// Prints a header, a row for each case as it is handed in, and a summary.
class table {
 public:
  table(std::ostream& stream, std::size_t name_width, const settings& s);
  void print(const row& r);
  void print_summary(const settings& s) const;

  int count(cases::verdict v) const { return count_.count(v); }

 private:
  std::ostream& stream_;
  int name_width_;
  cases::tally count_;
  double worst_y_ = 0, worst_gradient_ = 0, worst_decode_ = 0;
};

}  // namespace layer_program
