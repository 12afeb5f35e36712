#include "run.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace attend_program {
namespace {

double largest_magnitude(const heed::io::npy_array& x) {
  double largest = 0;
  for (const double value : x.values<double>()) largest = std::max(largest, std::abs(value));
  return largest;
}

using expectations = std::vector<std::optional<heed::io::npy_array>>;

// What the case expects of each gradient.
expectations expected_gradients(const case_folder& c, const std::vector<gradient>& gradients) {
  expectations all;
  for (const gradient& g : gradients) {
    all.push_back(c.expected("d_" + g.tensor, g.values.extents()));
  }
  return all;
}

// Some gradients are 0 but for rounding: those are held against the case's others.
void compare_gradients(const expectations& expected, std::vector<gradient>& gradients) {
  double largest = 0;
  for (const auto& e : expected) largest = std::max(largest, e ? largest_magnitude(*e) : 0);
  for (std::size_t n = 0; n < gradients.size(); ++n) {
    if (!expected[n]) continue;
    gradients[n].error = compare(gradients[n].values.as<double>(), *expected[n], largest / 100);
  }
}

constexpr std::array<kind, 8> kinds = {{
    {"softmax", run_softmax},
    {"rope", run_rope},
    {"alibi", run_alibi},
    {"rel", run_relative},
    {"fox", run_fox},
    {"path", run_path},
    {"cope", run_cope},
    {"mta", run_mta},
}};

}  // namespace

std::optional<heed::index> decode_from(const case_folder& c, heed::index wanted) {
  const heed::problem p = c.problem();
  const heed::index first = wanted == 0 ? p.T / 2 : wanted;
  if (!c.flag("causal") || p.S != p.T || first < 1 || first >= p.T) return {};
  return first;
}

outcome run_case(const case_folder& c, const settings& given) {
  settings s = given;
  if (s.decode) {
    s.decode = decode_from(c, *s.decode);
    if (!s.decode) {
      throw case_error((c.folder() / "case.txt").string() + ": cannot be decoded from token " +
                       std::to_string(*given.decode) +
                       " on: expected causal=1, S=T and T above it");
    }
  }
  const std::string mechanism = c.mechanism();
  for (const kind& k : kinds) {
    if (k.name != mechanism) continue;
    if (k.run == nullptr) throw not_built("mechanism " + mechanism + " is not built yet");
    const std::optional<heed::io::npy_array> expected = c.expected_out();
    outcome result = k.run(c, s);
    result.tolerance = s.tolerance ? *s.tolerance : default_tolerance(c, s.type);
    if (expected) result.error = compare(result.out.as<double>(), *expected);
    result.gradient_tolerance = s.tolerance ? *s.tolerance : default_gradient_tolerance(c, s.type);
    result.negligible = s.type == heed::io::dtype::f32 ? 1e-6 : 1e-13;
    compare_gradients(expected_gradients(c, result.gradients), result.gradients);
    return result;
  }
  throw case_error((c.folder() / "case.txt").string() + ": unknown mechanism " + mechanism);
}

double default_tolerance(const case_folder& c, heed::io::dtype type) {
  const bool single = type == heed::io::dtype::f32;
  const std::string mechanism = c.mechanism(), name = c.name();
  const auto named = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (mechanism == "fox" || c.flag("fox")) {
    // The gates of these sum to -4e4 beside differences of 0.05.
    if (named("resets")) return single ? 2e-5 : 1e-11;
    return single ? 5e-6 : 1e-12;
  }
  // Logits of 50 and more: their own rounding is amplified by exp.
  if (mechanism == "cope" && (named("saturated") || named("wide"))) return single ? 3e-5 : 1e-12;
  if (mechanism == "path" || mechanism == "cope" || mechanism == "mta") {
    return single ? 5e-6 : 1e-12;
  }
  return single ? 3e-6 : 1e-13;
}

double default_gradient_tolerance(const case_folder& c, heed::io::dtype type) {
  const bool single = type == heed::io::dtype::f32;
  const std::string mechanism = c.mechanism(), name = c.name();
  const auto named = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if ((mechanism == "fox" || c.flag("fox")) && named("resets")) return single ? 1e-4 : 1e-9;
  const bool steep = mechanism == "cope" && (named("saturated") || named("wide"));
  return single ? (steep ? 1e-4 : 2e-5) : 1e-10;
}

double visible_pairs(const heed::problem& p, const heed::mask& m) {
  if (p.B == 0 || p.Hq == 0) return 0;
  double pairs = 0;
  for (heed::index i = 0; i < p.T; ++i) {
    const heed::index position = i + p.S - p.T;
    heed::index last = p.S - 1;
    if (m.is_causal) last = std::min(last, position);
    if (m.right < p.S) last = std::min(last, position + m.right);
    const heed::index first = m.left < p.S ? std::max<heed::index>(0, position - m.left) : 0;
    pairs += static_cast<double>(std::max<heed::index>(0, last - first + 1));
  }
  return pairs * static_cast<double>(p.B) * static_cast<double>(p.Hq);
}

difference compare(const heed::io::npy_array& found, const heed::io::npy_array& expected,
                   double at_least) {
  const auto have = found.values<double>(), want = expected.values<double>();
  double largest_error = 0, largest = at_least;
  for (std::size_t n = 0; n < want.size(); ++n) {
    const double error = have[n] == want[n] ? 0 : std::abs(have[n] - want[n]);
    if (!(error <= largest_error)) largest_error = error;
    if (std::isnan(error)) return {error, error};
    largest = std::max(largest, std::abs(want[n]));
  }
  if (largest_error == 0) return {};
  return {largest_error,
          largest > 0 ? largest_error / largest : std::numeric_limits<double>::infinity()};
}

}  // namespace attend_program
