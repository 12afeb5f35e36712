// Running a case: a layer of the published kind, its weights from the case's file, its results held
// against what the case holds.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/report.hpp"
#include "heed/io/npy.hpp"
#include "kinds.hpp"

namespace layer_program {

using cases::difference;
using cases::not_built;

struct settings {
  heed::io::dtype type = heed::io::dtype::f32;
  bool grad = false;                        // gradients, too
  std::optional<heed::index> prefill = {};  // decode: tokens of the first call, then one at a time
  std::optional<double> tolerance = {};     // default: by type, result or gradient
};

struct gradient {
  std::string tensor;  // x, or the official name of a parameter
  // Over the largest expected gradient of the case.
  std::optional<difference> error = {};
};

// Which layer, in a person's words.
struct layer_shape {
  heed::index B = 0, T = 0, model_dim = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

struct outcome {
  layer_shape shape;
  heed::io::npy_array y;  // [B, T, model_dim]: forward's, or with settings::prefill decode's
  double forward_seconds = 0, backward_seconds = 0, decode_seconds = 0;  // decode: the single steps
  double tolerance = 0, gradient_tolerance = 0;
  std::optional<difference> error = {};         // of forward's y
  std::optional<difference> decode_error = {};  // of decode's
  std::vector<gradient> gradients = {};
  heed::io::npy_array d_x = {};
  // For grads.safetensors: names, shapes and values of the learned parameters' gradients.
  struct tensor {
    std::string name;
    std::vector<heed::index> shape;
    std::variant<std::vector<float>, std::vector<double>> values;
  };
  std::vector<tensor> parameter_gradients = {};

  bool within_tolerance() const {
    bool within = !error || error->relative <= tolerance;
    within = within && (!decode_error || decode_error->relative <= tolerance);
    for (const gradient& g : gradients) {
      within = within && (!g.error || g.error->relative <= gradient_tolerance);
    }
    return within;
  }
  bool compared() const {
    bool any = error.has_value() || decode_error.has_value();
    for (const gradient& g : gradients) any = any || g.error.has_value();
    return any;
  }
};

// Throws case_error, npy_error, safetensors_error or heed::shape_error for a case that cannot be
// run, not_built for a kind of layer that this program does not know. Writes
// nothing.
outcome run_case(const case_folder& c, const settings& s);

// Writes the gradients of the parameters as a safetensors file. Throws safetensors_error.
void write_gradients(const std::filesystem::path& path, const outcome& o);

// The layer of a case with the case's weights, in T. Throws like run_case.
template <class T>
layer_ptr<T> load_layer(const case_folder& c);

}  // namespace layer_program
