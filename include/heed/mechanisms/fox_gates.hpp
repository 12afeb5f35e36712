// Log forget gates for fox and path: from learned logits, or fixed by how long each head remembers.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "heed/checks.hpp"
#include "heed/kernel/math.hpp"

namespace heed::inline HEED_ABI {

namespace kernel {

template <class Arch, class T>
void log_sigmoid_line(const T* from, index from_step, T* to, index to_step, index n) {
  constexpr index w = width<T, Arch>;
  T lanes[static_cast<std::size_t>(w)] = {};
  for (index i = 0; i < n; i += w) {
    const index used = (std::min)(w, n - i);
    for (index l = 0; l < used; ++l) lanes[l] = from[(i + l) * from_step];
    store_vec<Arch>(lanes, log_sigmoid<Arch>(load_vec<Arch>(lanes)));
    for (index l = 0; l < used; ++l) to[(i + l) * to_step] = lanes[l];
  }
}

}  // namespace kernel

// log_f = log sigmoid(logits) = min(x, 0) - log(1 + e^-|x|), element by element: finite and exact
// to rounding however large the logits are. [B, S, Hq]; log_f may be the same view as logits.
//
// Throws shape_error unless both have the same extents.
template <class X, class T>
void log_sigmoid(const tensor_view<X, 3>& logits, const tensor_view<T, 3>& log_f) {
  static_assert(std::is_same_v<std::remove_const_t<X>, T>,
                "heed: log_sigmoid: both views must have one element type, and log_f not const");
  check_extents("log_sigmoid", "log_f", log_f,
                {{{"batch", logits.extent(0)},
                  {"keys", logits.extent(1)},
                  {"query heads", logits.extent(2)}}});
  check_output("log_sigmoid", {"log_f", log_f}, {});
  if (log_f.empty()) return;
  const bool along_heads = log_f.extent(2) >= log_f.extent(1);
  const int outer = along_heads ? 1 : 2, inner = along_heads ? 2 : 1;
  for (index b = 0; b < log_f.extent(0); ++b) {
    for (index i = 0; i < log_f.extent(outer); ++i) {
      kernel::log_sigmoid_line<kernel::default_arch>(
          logits.data() + b * logits.stride(0) + i * logits.stride(outer), logits.stride(inner),
          log_f.data() + b * log_f.stride(0) + i * log_f.stride(outer), log_f.stride(inner),
          log_f.extent(inner));
    }
  }
}

// Decay times t_h [heads] in tokens, spaced evenly in their logarithm from shortest (head 0) to
// longest (last head): t_h = exp(linspace(log shortest, log longest, heads)).
//
// Throws shape_error unless 0 < shortest <= longest, both finite, and heads >= 0.
inline std::vector<double> decay_times(index heads, double shortest, double longest) {
  if (!(shortest > 0 && shortest <= longest && std::isfinite(longest))) {
    throw shape_error("heed: decay_times: are " + std::to_string(shortest) + " to " +
                      std::to_string(longest) + ", expected 0 < shortest <= longest < infinity");
  }
  if (heads < 0) {
    throw shape_error("heed: decay_times: heads: is " + std::to_string(heads) +
                      ", expected at least 0");
  }
  std::vector<double> times;
  for (index h = 0; h < heads; ++h) {
    const double part = heads > 1 ? static_cast<double>(h) / static_cast<double>(heads - 1) : 0;
    times.push_back(std::exp((1 - part) * std::log(shortest) + part * std::log(longest)));
  }
  return times;
}

// Data-independent gates that forget by a factor e in t tokens: log f = -1 / t. [heads]; as gates
// of a call it is a view of strides {0, 0, 1}.
inline std::vector<double> fixed_log_gates(index heads, double shortest, double longest) {
  std::vector<double> gates = decay_times(heads, shortest, longest);
  for (double& g : gates) g = -1 / g;
  return gates;
}

// The gate logits with log sigmoid(x) = -1 / t: x = -log(exp(1 / t) - 1). [heads]; where the bias
// of a layer's gate projection starts.
inline std::vector<double> fixed_gate_logits(index heads, double shortest, double longest) {
  std::vector<double> logits = decay_times(heads, shortest, longest);
  // For 1 / t beyond the range of exp the logit is -1 / t itself, to rounding.
  for (double& x : logits) x = -1 / x - std::log(-std::expm1(-1 / x));
  return logits;
}

}  // namespace heed::inline HEED_ABI
