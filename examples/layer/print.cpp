#include "print.hpp"

#include <algorithm>
#include <ostream>

#include "../attend/text.hpp"

namespace layer_program {
namespace {

using attend_program::duration;
using attend_program::format;

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

// The gradient that is farthest off; null where none was compared.
const gradient* worst_gradient(const outcome& o) {
  const gradient* worst = nullptr;
  for (const gradient& g : o.gradients) {
    if (!g.error) continue;
    if (worst == nullptr || !(g.error->relative <= worst->error->relative)) worst = &g;
  }
  return worst;
}

void print_error(std::ostream& stream, const std::string& what, const difference& error,
                 double tolerance) {
  stream << format("%-8s absolute %.2e, relative %.2e, tolerance %.2e: ", what.c_str(),
                   error.absolute, error.relative, tolerance)
         << word(error.relative <= tolerance ? verdict::within : verdict::over) << "\n";
}

void keep_worst(double& worst, double error) {
  if (!(error <= worst)) worst = error;
}

}  // namespace

void print_case(std::ostream& stream, const attend_case& c, const settings& s, const outcome& o) {
  const layer_shape& p = o.shape;
  stream << "case     " << c.name() << " (layer " << c.text("layer") << ")\n"
         << "shape    B=" << p.B << " T=" << p.T << " model_dim=" << p.model_dim
         << " heads=" << p.heads << " kv_heads=" << p.kv_heads << " head_dim=" << p.head_dim << ", "
         << type_name(s.type) << "\n"
         << "forward  " << duration(o.forward_seconds) << "\n";
  if (s.grad) stream << "backward " << duration(o.backward_seconds) << "\n";
  if (s.prefill) {
    const heed::index steps = std::max<heed::index>(0, p.T - *s.prefill);
    stream << "decode   " << steps << " tokens in " << duration(o.decode_seconds) << " behind "
           << *s.prefill << " at once\n";
  }
  if (o.error) print_error(stream, "y", *o.error, o.tolerance);
  if (o.decode_error) print_error(stream, "decode y", *o.decode_error, o.tolerance);
  for (const gradient& g : o.gradients) {
    if (g.error) print_error(stream, "d_" + g.tensor, *g.error, o.gradient_tolerance);
  }
}

table::table(std::ostream& stream, std::size_t name_width)
    : stream_(stream), name_width_(static_cast<int>(std::clamp<std::size_t>(name_width, 4, 110))) {
  stream_ << format("%-*s %2s %4s %4s %5s %3s %10s %9s %9s %9s  %-26s", name_width_, "case", "B",
                    "T", "dim", "heads", "D", "forward", "y error", "decode", "gradient",
                    "of (the worst)")
          << "  result\n";
}

void table::print(const row& r) {
  ++counts_[static_cast<std::size_t>(r.what)];
  stream_ << format("%-*s ", name_width_, r.name.c_str());
  if (!r.result) {
    stream_ << word(r.what) << ": " << r.problem << "\n";
    return;
  }
  const outcome& o = *r.result;
  const layer_shape& p = o.shape;
  const auto error = [](const std::optional<difference>& e) {
    return e ? format("%9.1e", e->relative) : format("%9s", "-");
  };
  const gradient* worst = worst_gradient(o);
  stream_ << format("%2td %4td %4td %5s %3td %10s ", p.B, p.T, p.model_dim,
                    format("%td/%td", p.heads, p.kv_heads).c_str(), p.head_dim,
                    duration(o.forward_seconds).c_str())
          << error(o.error) << " " << error(o.decode_error) << " "
          << error(worst != nullptr ? worst->error : std::nullopt)
          << format("  %-26s", worst != nullptr ? ("d_" + worst->tensor).c_str() : "-") << "  "
          << word(r.what) << "\n";
  if (o.error) keep_worst(worst_y_, o.error->relative);
  if (o.decode_error) keep_worst(worst_decode_, o.decode_error->relative);
  if (worst != nullptr) keep_worst(worst_gradient_, worst->error->relative);
}

void table::print_summary(const settings& s) const {
  int all = 0;
  for (const int n : counts_) all += n;
  stream_ << "\n"
          << all << (all == 1 ? " layer in " : " layers in ") << type_name(s.type) << ": "
          << count(verdict::within) << " within tolerance";
  const std::pair<verdict, const char*> others[] = {
      {verdict::over, "over tolerance"},
      {verdict::unchecked, "without expected results"},
      {verdict::broken, "could not run"},
      {verdict::not_built, "not built"}};
  for (const auto& [v, text] : others) {
    if (count(v) > 0) stream_ << ", " << count(v) << " " << text;
  }
  stream_ << format("\nlargest relative errors: y %.1e, decode %.1e, gradients %.1e\n", worst_y_,
                    worst_decode_, worst_gradient_);
}

}  // namespace layer_program
