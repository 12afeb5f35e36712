// What a person reads about cases, whichever program ran them.
#pragma once

#include <array>
#include <iosfwd>
#include <optional>
#include <string>

#include "heed/io/npy.hpp"

namespace cases {

enum class verdict { within, over, unchecked, not_built, broken };

const char* word(verdict v);
const char* type_name(heed::io::dtype type);

// The largest differences from what was expected, the relative one over a largest magnitude. NaN
// where there is a NaN or infinity that was not expected.
struct difference {
  double absolute = 0, relative = 0;
};

// "d_q      absolute 1.20e-07, relative 3.10e-07, tolerance 2.00e-05: ok"
void print_error(std::ostream& stream, const std::string& what, const difference& error,
                 double tolerance, bool within);

// One row of a table; result is there unless the case is broken or its kind not built.
template <class Outcome>
struct row {
  std::string name;
  verdict what = verdict::within;
  std::optional<Outcome> result = {};
  std::string problem = {};  // why it could not run
};

// The gradient that is farthest off, by size(gradient); null where none was compared.
template <class Gradients, class Size>
auto worst_gradient(const Gradients& gradients, const Size& size) {
  const typename Gradients::value_type* worst = nullptr;
  for (const auto& g : gradients) {
    if (g.error && (worst == nullptr || !(size(g) <= size(*worst)))) worst = &g;
  }
  return worst;
}

// How many cases came out how.
class tally {
 public:
  void add(verdict v) { ++counts_[static_cast<std::size_t>(v)]; }
  int count(verdict v) const { return counts_[static_cast<std::size_t>(v)]; }
  // "5 cases in float32: 4 within tolerance, 1 over tolerance"; `thing` is what there is one of.
  void print(std::ostream& stream, const std::string& thing, heed::io::dtype type) const;

 private:
  std::array<int, 5> counts_{};
};

}  // namespace cases
