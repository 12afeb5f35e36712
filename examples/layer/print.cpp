#include "print.hpp"

#include <algorithm>
#include <ostream>

#include "common/text.hpp"

namespace layer_program {
namespace {

using cases::duration;
using cases::format;
using cases::print_error;
using cases::type_name;
using cases::word;

const gradient* worst_gradient(const outcome& o) {
  return cases::worst_gradient(o.gradients, [](const gradient& g) { return g.error->relative; });
}
void print_against(std::ostream& stream, const std::string& what,
                   const std::optional<difference>& error, double tolerance) {
  if (error) print_error(stream, what, *error, tolerance, error->relative <= tolerance);
}

void keep_worst(double& worst, double error) {
  if (!(error <= worst)) worst = error;
}

}  // namespace

void print_case(std::ostream& stream, const case_folder& c, const settings& s, const outcome& o) {
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
  print_against(stream, "y", o.error, o.tolerance);
  print_against(stream, "decode y", o.decode_error, o.tolerance);
  for (const gradient& g : o.gradients) {
    print_against(stream, "d_" + g.tensor, g.error, o.gradient_tolerance);
  }
}

table::table(std::ostream& stream, std::size_t name_width, const settings&)
    : stream_(stream), name_width_(static_cast<int>(std::clamp<std::size_t>(name_width, 4, 110))) {
  stream_ << format("%-*s %2s %4s %4s %5s %3s %10s %9s %9s %9s  %-26s", name_width_, "case", "B",
                    "T", "dim", "heads", "D", "forward", "y error", "decode", "gradient",
                    "of (the worst)")
          << "  result\n";
}

void table::print(const row& r) {
  count_.add(r.what);
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
  stream_ << "\n";
  count_.print(stream_, "layer", s.type);
  stream_ << format("largest relative errors: y %.1e, decode %.1e, gradients %.1e\n", worst_y_,
                    worst_decode_, worst_gradient_);
}

}  // namespace layer_program
