// The contract of the reverse sweep, by small stages that each use one part of it, against
// differences.
#include <cmath>
#include <vector>

#include "gradient.hpp"
#include "heed/heed.hpp"
#include "small_stages.hpp"

namespace {

using heed::hook;
using heed::index;
using heed::panel;
using heed::place;
using heed::reverse_panel;
using heed_test::average;
using heed_test::from_above;
using heed_test::rotate_heads;

constexpr auto zero = heed::geometry::invisible::zero;

// X_ij <- X_ij + sum over s >= j of visible tanh(a X_is): a count along the sweep, whose adjoint
// counts the other way, with a gradient for a [1].
template <place Where>
struct running_count_grad {
  heed::tensor_view<double, 1> a = {};
};
template <place Where>
struct running_count {
  static constexpr place where = Where;
  static constexpr hook hooks = hook::geometry | hook::plan | hook::rows | hook::forward |
                                hook::carries | hook::forward_carries | hook::keeps_input |
                                hook::begin_backward | hook::backward | hook::gradients |
                                hook::sums;
  using gradient_type = running_count_grad<Where>;
  heed::tensor_view<const double, 1> a;

  heed::geometry geometry() const {
    return {0, 0, 0, 1, Where == place::probs ? zero : heed::geometry::invisible::minus_infinity};
  }
  template <class F>
  void gradients(const gradient_type& d, const F& f) const {
    f("count.a", d.a, a);
  }
  struct sums_type {
    heed::tensor_view<double, 1> to;
    double* sum = nullptr;
    void reduce() const {
      if (sum != nullptr) to(0) += *sum;
    }
  };
  auto sums(const gradient_type& d, const auto& context) const {
    if (d.a.data() == nullptr) return sums_type{};
    sums_type s{d.a, context.memory.template take<double>(1)};
    *s.sum = 0;
    return s;
  }
  template <class T>
  struct rows_type {
    double a;
    index heads, count;
    T* counted;  // [heads][count]
    T* later = nullptr;
    sums_type to = {};

    template <class Arch>
    void forward(const panel<T, Arch>& p) const {
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          for (index c = p.last; c-- > p.first;) {
            T& x = p.line(g, r)[c];
            if (x == -std::numeric_limits<T>::infinity()) continue;
            x += counted[g * count + r] += std::tanh(static_cast<T>(a) * x);
          }
        }
      }
    }
    template <class Visit>
    void carries(Visit&& visit) {
      visit(counted, heads * count);
    }
    template <class Arch>
    void begin_backward(const heed::reverse_context<T, Arch>& c, const sums_type& sums) {
      to = sums;
      later = c.memory.template take<T>(heads * count);
      std::fill(later, later + heads * count, T(0));
    }
    // forward: dX_is += a (1 - tanh^2) sum over j <= s of dY_ij
    template <class Arch>
    void backward(const reverse_panel<T, Arch>& p) const {
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          for (index c = p.first; c < p.last; ++c) {
            const T x = p.kept_line(g, r)[c];
            if (x == -std::numeric_limits<T>::infinity()) continue;
            T& d = p.line(g, r)[c];
            const T t = std::tanh(static_cast<T>(a) * x);
            const T all = later[g * count + r] += d;
            d += static_cast<T>(a) * (1 - t * t) * all;
            if (to.sum != nullptr) *to.sum += static_cast<double>(x * (1 - t * t) * all);
          }
        }
      }
    }
  };
  struct plan_type {
    double a;
    template <class T, class Arch>
    auto rows(const heed::rows_context<T, Arch>& c) const {
      T* counted = c.memory.template take<T>(c.heads * c.count);
      std::fill(counted, counted + c.heads * c.count, T(0));
      return rows_type<T>{a, c.heads, c.count, counted};
    }
  };
  template <class T, class Arch>
  auto plan(const heed::plan_context<T, Arch>&) const {
    return plan_type{a(0)};
  }
};

// Changes nothing, and counts what the driver says out of turn on the way back: columns oldest to
// newest without a gap, each announced, computed again, differentiated, left.
template <place Where>
struct witness {
  static constexpr place where = Where;
  static constexpr hook hooks = hook::plan | hook::rows | hook::enter | hook::forward |
                                hook::begin_backward | hook::backward | hook::retreat |
                                hook::end_backward;
  int* faults;
  int* panels;

  struct rows_type {
    int* faults;
    int* panels;
    bool reverse = false, entered = false, moved = false;
    index at = 0, begin = 0, end = 0, seen = 0;

    void say(bool good) const { *faults += good ? 0 : 1; }
    void enter(index key_begin, index key_end) {
      begin = key_begin;
      end = key_end;
      entered = true;
      seen = 0;
    }
    template <class T, class Arch>
    void forward(const panel<T, Arch>& p) {
      say(!reverse || (entered && p.column == begin));
      ++seen;
    }
    void begin_backward(const auto&, const auto&) {
      reverse = true;
      moved = false;
    }
    template <class T, class Arch>
    void backward(const reverse_panel<T, Arch>& p) {
      ++*panels;
      say(reverse && entered && seen > 0 && p.column == begin && p.begin < p.end);
      for (index g = 0; g < p.heads; ++g) {
        for (index r = 0; r < p.end - p.origin; ++r) {
          for (index c = 0; c < end - begin; ++c) {
            if (p.origin + r >= p.begin && c >= p.first && c < p.last) continue;
            say(p.line(g, p.origin + r)[c] == 0);
          }
        }
      }
    }
    void retreat(index key_begin, index key_end) {
      say(reverse && key_begin < key_end && (!moved || key_begin == at));
      if (entered) say(key_begin == begin && key_end == end);
      moved = true;
      entered = false;
      at = key_end;
    }
    void end_backward(const auto&) const { say(reverse && moved); }
  };
  struct plan_type {
    int* faults;
    int* panels;
    template <class T, class Arch>
    auto rows(const heed::rows_context<T, Arch>&) const {
      return rows_type{faults, panels};
    }
  };
  template <class T, class Arch>
  auto plan(const heed::plan_context<T, Arch>&) const {
    return plan_type{faults, panels};
  }
};

constexpr place logits = place::logits, probs = place::probs;
int faults = 0, panels = 0;

// Differences in double on random problems. list(memory) -> tuple of stages.
template <class List>
void check_list(std::uint64_t first_seed, index heads, const List& list) {
  for (std::uint64_t seed = first_seed; seed < first_seed + 40; ++seed) {
    heed_test::random_problem x(seed, {.longest = 24, .heads_multiple = heads});
    const heed::tuning& sizes = heed_test::all_tunings[seed % heed_test::all_tunings.size()];
    INFO("seed " << seed << " " << x.text() << " rows " << sizes.rows << " panel " << sizes.panel);
    heed_test::twin<4> bias({1, x.call.Hq, x.call.T, x.call.S}, heed_test::layout::contiguous);
    bias.fill([&] {
      return x.random.chance(0.1) ? -std::numeric_limits<double>::infinity() : x.random.normal();
    });
    heed_test::gradient_memory<double> memory;
    const auto errors = std::apply(
        [&](const auto&... m) {
          return heed::reference::gradient_check(
              x.q.view<double>(), x.k.view<double>(), x.v.view<double>(),
              {.mask = x.mask, .tuning = sizes}, {.samples = 6, .seed = seed}, m...);
        },
        list(memory, bias));
    for (const auto& [tensor, error] : errors) {
      INFO(tensor);
      CHECK(error <= 1e-7);
    }
  }
}

template <place Where>
auto counting(heed_test::gradient_memory<double>& to, const char* name) {
  static std::map<std::string, double> factors;  // each with a place of its own
  double& a = factors.emplace(name, 0.25).first->second;
  const heed::tensor_view<const double, 1> view(&a, {1});
  return heed::with_grad(running_count<Where>{view}, {to.like(name, view)});
}

}  // namespace

TEST_CASE("Adjoints with lags, halos and carries, before softmax") {
  check_list(1, 1, [](auto& to, auto& bias) {
    const auto b = bias.template read<double>();
    return std::tuple(heed::with_grad(heed::bias<double>{b}, {to.like("bias", b)}),
                      from_above<logits>{1, 1}, counting<logits>(to, "a"), average<logits>{2, 1},
                      witness<logits>{&faults, &panels}, counting<logits>(to, "b"));
  });
}

TEST_CASE("Adjoints with lags, halos and carries, behind softmax, too") {
  check_list(100, 1, [](auto& to, auto&) {
    return std::tuple(average<logits>{3, 2}, from_above<probs>{2, 0}, counting<probs>(to, "a"),
                      witness<probs>{&faults, &panels}, average<probs>{1, 2}, heed::softcap{1.5});
  });
}

TEST_CASE("Adjoints where heads mix: groups of 2 and 3 share panels of 6") {
  check_list(200, 6, [](auto& to, auto&) {
    return std::tuple(heed::alibi{}, average<logits>{5, 0}, rotate_heads<logits, 2>{},
                      from_above<logits>{2, 1}, rotate_heads<probs, 3>{}, counting<probs>(to, "a"),
                      from_above<probs>{1, 3});
  });
}

TEST_CASE("The reverse sweep announces, passes and leaves columns in order") {
  CHECK(faults == 0);
  CHECK(panels > 1000);
}
