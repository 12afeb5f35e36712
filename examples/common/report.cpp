#include "report.hpp"

#include <ostream>
#include <utility>

#include "text.hpp"

namespace cases {

const char* word(verdict v) {
  switch (v) {
    case verdict::within:
      return "ok";
    case verdict::over:
      return "OVER TOLERANCE";
    case verdict::unchecked:
      return "nothing to compare with";
    case verdict::not_built:
      return "not built";
    case verdict::broken:
      break;
  }
  return "ERROR";
}

const char* type_name(heed::io::dtype type) {
  return type == heed::io::dtype::f32 ? "float32" : "float64";
}

void print_error(std::ostream& stream, const std::string& what, const difference& error,
                 double tolerance, bool within) {
  stream << format("%-8s absolute %.2e, relative %.2e, tolerance %.2e: ", what.c_str(),
                   error.absolute, error.relative, tolerance)
         << word(within ? verdict::within : verdict::over) << "\n";
}

void tally::print(std::ostream& stream, const std::string& thing, heed::io::dtype type) const {
  int all = 0;
  for (const int n : counts_) all += n;
  stream << all << " " << thing << (all == 1 ? " in " : "s in ") << type_name(type) << ": "
         << count(verdict::within) << " within tolerance";
  const std::pair<verdict, const char*> others[] = {
      {verdict::over, "over tolerance"},
      {verdict::unchecked, "without expected results"},
      {verdict::broken, "could not run"},
      {verdict::not_built, "not built"}};
  for (const auto& [v, text] : others) {
    if (count(v) > 0) stream << ", " << count(v) << " " << text;
  }
  stream << "\n";
}

}  // namespace cases
