#include "print.hpp"

#include <algorithm>
#include <ostream>

#include "common/text.hpp"

namespace attend_program {
namespace {

using cases::duration;
using cases::format;
using cases::print_error;
using cases::type_name;
using cases::verdict;
using cases::word;

double gflops(const timing& t) {
  return t.seconds > 0 ? t.flops / t.seconds * 1e-9 : 0;
}

void print_timing(std::ostream& stream, const char* what, const timing& t) {
  stream << format("%-8s ", what) << duration(t.seconds) << format(", %.2f GFLOP/s", gflops(t))
         << (t.calls > 1 ? format(" (median of %d calls)", t.calls) : "") << "\n";
}

// What is negligible does not count.
const gradient* worst_gradient(const outcome& o) {
  return cases::worst_gradient(o.gradients, [&](const gradient& g) {
    return g.error->absolute < o.negligible ? 0 : g.error->relative;
  });
}

}  // namespace

void print_case(std::ostream& stream, const case_folder& c, const settings& s, const outcome& o) {
  const heed::problem& p = o.problem;
  stream << "case     " << c.name() << " (" << c.mechanism() << ")\n"
         << "shape    B=" << p.B << " T=" << p.T << " S=" << p.S << " Hq=" << p.Hq
         << " Hkv=" << p.Hkv << " D=" << p.D << " Dv=" << p.Dv << ", " << type_name(s.type) << ", "
         << s.threads << (s.threads == 1 ? " thread\n" : " threads\n");
  print_timing(stream, "time", o.forward);
  if (s.grad) print_timing(stream, "grad", o.backward);
  if (o.error) {
    print_error(stream, "error", *o.error, o.tolerance, o.error->relative <= o.tolerance);
  }
  for (const gradient& g : o.gradients) {
    if (!g.error) continue;
    print_error(stream, "d_" + g.tensor, *g.error, o.gradient_tolerance, o.within_tolerance(g));
  }
}

table::table(std::ostream& stream, std::size_t name_width, const settings& s)
    : stream_(stream),
      name_width_(static_cast<int>(std::clamp<std::size_t>(name_width, 4, 100))),
      grad_(s.grad) {
  stream_ << format("%-*s %3s %5s %5s %5s %4s %4s %11s %8s", name_width_, "case", "B", "T", "S",
                    "heads", "D", "Dv", "time", "GFLOP/s");
  if (grad_) stream_ << format(" %11s %8s", "grad time", "GFLOP/s");
  stream_ << (grad_ ? "" : "   abs err") << "   rel err tolerance";
  if (grad_) stream_ << format("  %-16s %9s %9s", "worst gradient", "rel err", "tolerance");
  stream_ << "  result\n";
}

void table::print(const row& r) {
  count_.add(r.what);
  if (!r.result) {
    stream_ << format("%-*s ", name_width_, r.name.c_str());
    if (r.what == verdict::not_built) {
      stream_ << r.problem << "\n";
      if (std::find(missing_.begin(), missing_.end(), r.problem) == missing_.end()) {
        missing_.push_back(r.problem);
      }
    } else {
      stream_ << word(r.what) << ": " << r.problem << "\n";
    }
    return;
  }
  const outcome& o = *r.result;
  const heed::problem& p = o.problem;
  stream_ << format("%-*s %3td %5td %5td %5s %4td %4td", name_width_, r.name.c_str(), p.B, p.T, p.S,
                    format("%td/%td", p.Hq, p.Hkv).c_str(), p.D, p.Dv);
  const auto print_time = [&](const timing& t) {
    stream_ << format(" %11s %8.2f", duration(t.seconds).c_str(), gflops(t));
  };
  print_time(o.forward);
  if (grad_) print_time(o.backward);
  if (!grad_) stream_ << (o.error ? format(" %9.1e", o.error->absolute) : format(" %9s", "-"));
  if (o.error) {
    stream_ << format(" %9.1e %9.1e", o.error->relative, o.tolerance);
  } else {
    stream_ << format(" %9s %9s", "-", "-");
  }
  if (grad_) print_worst(o);
  stream_ << "  " << word(r.what) << "\n";
}

void table::print_worst(const outcome& o) const {
  const gradient* worst = worst_gradient(o);
  if (worst == nullptr) {
    stream_ << format("  %-16s %9s %9s", "-", "-", "-");
    return;
  }
  stream_ << format("  %-16s %9.1e %9.1e", ("d_" + worst->tensor).c_str(), worst->error->relative,
                    o.gradient_tolerance);
}

void table::print_summary(const settings& s) const {
  stream_ << "\n";
  count_.print(stream_, "case", s.type);
  for (const std::string& problem : missing_) stream_ << "  " << problem << "\n";
}

}  // namespace attend_program
