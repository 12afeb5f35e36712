// What a person reads: one case in full, or many as rows of a table.
#pragma once

#include <iosfwd>
#include <string>

#include "run.hpp"

namespace layer_program {

enum class verdict { within, over, unchecked, not_built, broken };

// One row of the table; result is there unless the case could not run.
struct row {
  std::string name;
  verdict what = verdict::within;
  std::optional<outcome> result = {};
  std::string problem = {};
};

void print_case(std::ostream& stream, const attend_case& c, const settings& s, const outcome& o);

// Prints a header, a row for each case as it is handed in, and a summary.
class table {
 public:
  table(std::ostream& stream, std::size_t name_width);
  void print(const row& r);
  void print_summary(const settings& s) const;

  int count(verdict v) const { return counts_[static_cast<std::size_t>(v)]; }

 private:
  std::ostream& stream_;
  int name_width_;
  int counts_[5] = {};
  double worst_y_ = 0, worst_gradient_ = 0, worst_decode_ = 0;
};

}  // namespace layer_program
