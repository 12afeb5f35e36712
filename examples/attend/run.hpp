// Running a case: what goes in, what comes out, and which mechanisms there are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/case.hpp"
#include "common/report.hpp"
#include "heed/io/npy.hpp"
#include "heed/options.hpp"

namespace attend_program {

using cases::case_error;
using cases::case_folder;
using cases::difference;
using cases::not_built;

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

// Of sum(out * dout) by one tensor.
struct gradient {
  std::string tensor;  // the case's name for it: q, k, v, g ...
  heed::io::npy_array values;
  // Where the case has d_TENSOR.npy; over the largest expected magnitude or a hundredth of the
  // case's largest gradient.
  std::optional<difference> error = {};
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
  outcome (*run)(const case_folder&, const settings&);  // null: not built yet
};

// What decoding it means for a case; empty: it cannot be decoded.
std::optional<heed::index> decode_from(const case_folder& c, heed::index wanted);

// Runs a case. Throws case_error, npy_error or heed::shape_error for a case that cannot be run,
// not_built for a mechanism that has no kernel yet. Writes nothing.
outcome run_case(const case_folder& c, const settings& s);

// The relative error that a case may have: what its mechanism reaches, with the margin its
// conditioning needs.
double default_tolerance(const case_folder& c, heed::io::dtype type);
double default_gradient_tolerance(const case_folder& c, heed::io::dtype type);

// Pairs of a query head's row and a key that the mask shows, over the whole call.
double visible_pairs(const heed::problem& p, const heed::mask& m);

// The relative difference is over the larger of the largest expected magnitude and `at_least`.
difference compare(const heed::io::npy_array& found, const heed::io::npy_array& expected,
                   double at_least = 0);

outcome run_softmax(const case_folder& c, const settings& s);
outcome run_rope(const case_folder& c, const settings& s);
outcome run_alibi(const case_folder& c, const settings& s);
outcome run_relative(const case_folder& c, const settings& s);
outcome run_fox(const case_folder& c, const settings& s);
outcome run_fox_rope(const case_folder& c, const settings& s);
outcome run_cope(const case_folder& c, const settings& s);
outcome run_path(const case_folder& c, const settings& s);
outcome run_mta(const case_folder& c, const settings& s);

}  // namespace attend_program
