// Running a case: what goes in, what comes out, and which mechanisms there are.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "case.hpp"
#include "heed/io/npy.hpp"

namespace attend_program {

struct settings {
  heed::io::dtype type = heed::io::dtype::f32;
  heed::index threads = 1;
  std::optional<double> tolerance = {};  // default: by mechanism and type
};

// The largest differences from the expected output. relative is absolute over the largest
// expected magnitude. NaN where out has a NaN or infinity that was not expected.
struct difference {
  double absolute = 0;
  double relative = 0;
};

struct outcome {
  heed::problem problem;
  heed::io::npy_array out;  // [B, T, Hq, Dv]
  heed::io::npy_array lse;  // [B, T, Hq]
  double seconds = 0;       // median over calls
  int calls = 0;
  double flops = 0;  // of one call: 2 (D + Dv) for every visible pair of a query and a key
  double tolerance = 0;
  std::optional<difference> error = {};  // where the case has an expected output

  // A NaN error is over every tolerance.
  bool within_tolerance() const { return !error || error->relative <= tolerance; }
};

// One kind of case, named by the key mechanism.
struct kind {
  std::string_view name;
  outcome (*run)(const attend_case&, const settings&);  // null: not built yet
};

// Runs a case. Throws case_error, npy_error or heed::shape_error for a case that cannot be run,
// not_built for a mechanism that has no kernel yet. Writes nothing.
outcome run_case(const attend_case& c, const settings& s);

// The relative error that a case may have: what its mechanism reaches, with the margin its
// conditioning needs.
double default_tolerance(const attend_case& c, heed::io::dtype type);

// Pairs of a query head's row and a key that the mask shows, over the whole call.
double visible_pairs(const heed::problem& p, const heed::mask& m);

difference compare(const heed::io::npy_array& out, const heed::io::npy_array& expected);

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
