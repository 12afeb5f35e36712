// Running a case: what goes in, what comes out, and which mechanisms there are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "case.hpp"
#include "heed/io/npy.hpp"
#include "heed/options.hpp"

namespace attend_program {

struct settings {
  heed::io::dtype type = heed::io::dtype::f32;
  heed::index threads = 1;
  bool grad = false;  // gradients, too
  // Through a cache: so many tokens at once, then one by one. 0: half of them.
  std::optional<heed::index> decode = {};
  std::optional<double> tolerance = {};  // default: by mechanism and type

  // For tests: one call instead of as many as a clock wants, and block sizes of their own.
  bool timed = true;
  heed::tuning tuning = {};
  heed::index path_chunk = 0, path_block = 0;
};

// The largest differences from what was expected. relative is absolute over the largest expected
// magnitude, of a gradient over that or a hundredth of the case's largest gradient. NaN where there
// is a NaN or infinity that was not expected.
struct difference {
  double absolute = 0;
  double relative = 0;
};

// Of sum(out * dout) by one tensor.
struct gradient {
  std::string tensor;  // the case's name for it: q, k, v, g ...
  heed::io::npy_array values;
  std::optional<difference> error = {};  // where the case has d_TENSOR.npy
};

// Calls of one function.
struct timing {
  double seconds = 0;  // median over calls
  int calls = 0;
  double flops = 0;  // of one call
};

struct outcome {
  heed::problem problem;
  heed::io::npy_array out;  // [B, T, Hq, Dv]
  heed::io::npy_array lse;  // [B, T, Hq]
  timing forward;           // 2 (D + Dv) for every visible pair of a query and a key
  double tolerance = 0;
  std::optional<difference> error = {};  // where the case has an expected output

  // With settings::grad.
  std::vector<gradient> gradients = {};
  timing backward = {};  // 6 D + 4 Dv for every visible pair
  double gradient_tolerance = 0;
  double negligible = 0;  // an absolute error below this is none

  // A NaN error is over every tolerance.
  bool within_tolerance(const gradient& g) const {
    return !g.error || g.error->absolute < negligible || g.error->relative <= gradient_tolerance;
  }
  bool within_tolerance() const {
    bool within = !error || error->relative <= tolerance;
    for (const gradient& g : gradients) within = within && within_tolerance(g);
    return within;
  }
  // Whether there was anything to compare with.
  bool compared() const {
    bool any = error.has_value();
    for (const gradient& g : gradients) any = any || g.error;
    return any;
  }
};

// One kind of case, named by the key mechanism.
struct kind {
  std::string_view name;
  outcome (*run)(const attend_case&, const settings&);  // null: not built yet
};

// What decoding it means for a case; empty: it cannot be decoded.
std::optional<heed::index> decode_from(const attend_case& c, heed::index wanted);

// Runs a case. Throws case_error, npy_error or heed::shape_error for a case that cannot be run,
// not_built for a mechanism that has no kernel yet. Writes nothing.
outcome run_case(const attend_case& c, const settings& s);

// The relative error that a case may have: what its mechanism reaches, with the margin its
// conditioning needs.
double default_tolerance(const attend_case& c, heed::io::dtype type);
double default_gradient_tolerance(const attend_case& c, heed::io::dtype type);

// Pairs of a query head's row and a key that the mask shows, over the whole call.
double visible_pairs(const heed::problem& p, const heed::mask& m);

// relative is over the larger of the largest expected magnitude and `at_least`.
difference compare(const heed::io::npy_array& found, const heed::io::npy_array& expected,
                   double at_least = 0);

outcome run_softmax(const attend_case& c, const settings& s);
outcome run_rope(const attend_case& c, const settings& s);
outcome run_alibi(const attend_case& c, const settings& s);
outcome run_relative(const attend_case& c, const settings& s);
outcome run_fox(const attend_case& c, const settings& s);
outcome run_fox_rope(const attend_case& c, const settings& s);
outcome run_cope(const attend_case& c, const settings& s);
outcome run_path(const attend_case& c, const settings& s);
outcome run_mta(const attend_case& c, const settings& s);

}  // namespace attend_program
