// Pruning: what is left out of a row sums to at most the tolerance, in exact probabilities,
// whatever the queries and keys; and lists whose logits have no bound are refused.
#include <cmath>
#include <memory>

#include "compare.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/bias.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "heed/mechanisms/softcap.hpp"

using namespace heed_test;

namespace {

// A call whose values are the rows of a unit matrix, so that its outputs are the probabilities.
struct probability_call {
  heed::index T, S, Hq, Hkv, D, B = 1;
  heed::mask mask = heed::causal();
  double scale = 1;
  twin<4> q, k, v;
  twin<3> log_f;

  probability_call(random_source& random, heed::index queries, heed::index keys, heed::index heads,
                   heed::index kv_heads, heed::index size)
      : T(queries),
        S(keys),
        Hq(heads),
        Hkv(kv_heads),
        D(size),
        scale(1 / std::sqrt(static_cast<double>(size))),
        q({1, T, Hq, D}, layout::heads_outside),
        k({1, S, Hkv, D}, layout::fused),
        v({1, S, Hkv, S}, layout::contiguous),
        log_f({1, S, Hq}, layout::every_second) {
    q.fill([&] { return random.normal(); });
    k.fill([&] { return random.normal(); });
    log_f.fill([&] { return random.uniform(-0.6, 0); });
    v.fill([] { return 0.0; });
    for (heed::index j = 0; j < S; ++j) {
      for (heed::index h = 0; h < Hkv; ++h) v.set(1, 0, j, h, j);
    }
  }

  template <class X, class... Mechanisms>
  twin<4> run(const heed::tuning& sizes, const Mechanisms&... mechanisms) const {
    twin<4> out({1, T, Hq, S}, layout::contiguous);
    heed::attend(q.read<X>(), k.read<X>(), v.read<X>(), out.view<X>(),
                 {.mask = mask, .scale = scale, .tuning = sizes}, mechanisms...);
    return out;
  }
  template <class... Mechanisms>
  twin<4> exact(const Mechanisms&... mechanisms) const {
    twin<4> out({1, T, Hq, S}, layout::contiguous);
    heed::reference::attend(q.read<double>(), k.read<double>(), v.read<double>(),
                            out.view<double>(), {.mask = mask, .scale = scale}, mechanisms...);
    return out;
  }
};

struct left_out {
  double most = 0;        // largest sum of exact probabilities left out of a row
  heed::index pairs = 0;  // weights of 0 whose exact probability is not
};

// Compares weights found with the exact probabilities: those of 0 are left out.
template <class X>
left_out compare_weights(const twin<4>& found, const twin<4>& exact) {
  const auto f = found.read<X>();
  const auto e = exact.read<double>();
  left_out result;
  for (heed::index i = 0; i < e.extent(1); ++i) {
    for (heed::index h = 0; h < e.extent(2); ++h) {
      double mass = 0;
      for (heed::index j = 0; j < e.extent(3); ++j) {
        if (f(0, i, h, j) != 0 || e(0, i, h, j) == 0) continue;
        mass += e(0, i, h, j);
        ++result.pairs;
      }
      result.most = std::max(result.most, mass);
    }
  }
  return result;
}

constexpr std::array tolerances{4.5399929762484854e-05, 1e-3, 0.2};
constexpr std::array<heed::tuning, 3> tunings{heed::tuning{16, 16}, heed::tuning{5, 3},
                                              heed::tuning{7, 64}};

// Runs a list with fox in it at every tolerance and tuning; make(type, pruning) returns the list.
// Returns how many pairs were left out at the largest tolerance.
template <class X, class Make>
heed::index check_mass(const probability_call& c, const Make& make) {
  const auto exact = std::apply([&](const auto&... m) { return c.exact(m...); },
                                make(double(), heed::pruning{0, 0}));
  heed::index most = 0;
  for (const double tolerance : tolerances) {
    for (const heed::tuning& sizes : tunings) {
      const auto found = std::apply([&](const auto&... m) { return c.run<X>(sizes, m...); },
                                    make(X(), heed::pruning{tolerance, 0}));
      const left_out pruned = compare_weights<X>(found, exact);
      CAPTURE(tolerance, sizes.rows, sizes.panel, pruned.pairs);
      CHECK(pruned.most <= tolerance);
      most = std::max(most, pruned.pairs);
    }
  }
  return most;
}

template <class X>
auto fox_of(const twin<3>& log_f, const heed::pruning& prune) {
  return heed::fox<X>{log_f.read<X>(), heed::gate::outside_scale, prune};
}

}  // namespace

TEMPLATE_TEST_CASE("pruning leaves out at most the tolerance", "", float, double) {
  random_source random(1);
  const auto make = [](const probability_call& c) {
    return [&c](auto t, heed::pruning p) { return std::tuple(fox_of<decltype(t)>(c.log_f, p)); };
  };
  SECTION("normal queries and keys") {
    probability_call c(random, 150, 150, 4, 2, 8);
    CHECK(check_mass<TestType>(c, make(c)) > 1000);
  }
  SECTION("norms in opposition: old keys along the query, new ones against it") {
    // Scores reach the bound |q| |k| exactly, on the wrong side of every guess.
    for (const double size : {1.0, 3.0, 30.0}) {
      probability_call c(random, 150, 150, 2, 2, 4);
      c.log_f.fill([&] { return random.uniform(-1.5, -0.5) * std::sqrt(size); });
      for (heed::index i = 0; i < 150; ++i) {
        for (heed::index d = 0; d < 4; ++d) {
          for (heed::index h = 0; h < 2; ++h) {
            c.q.set(size * random.uniform(0.5, 1.5), 0, i, h, d);
            c.k.set((i % 32 < 20 ? 1 : -1) * random.uniform(0.9, 1.0), 0, i, h, d);
          }
        }
      }
      CHECK(check_mass<TestType>(c, make(c)) > (size < 30 ? 1000 : 0));
    }
  }
  SECTION("the bound is met: equal scores, constant decay, one key far back that makes up for it") {
    probability_call c(random, 120, 120, 1, 1, 1);
    c.scale = 1;
    c.log_f.fill([] { return -0.5; });
    c.q.fill([] { return 1.0; });
    for (heed::index j = 0; j < 120; ++j) c.k.set(j % 40 == 3 ? 12 : -12, 0, j, 0, 0);
    check_mass<TestType>(c, make(c));
  }
  SECTION("gates above 0 in between") {
    probability_call c(random, 150, 150, 2, 1, 4);
    c.log_f.fill([&] { return random.chance(0.05) ? random.uniform(0, 3) : -1; });
    check_mass<TestType>(c, make(c));
  }
  SECTION("gates of exactly 0 end the sweep") {
    probability_call c(random, 150, 150, 2, 1, 4);
    c.log_f.fill([&] { return random.chance(0.05) ? -HUGE_VAL : -0.01; });
    check_mass<TestType>(c, make(c));
  }
  SECTION("inside the scale") {
    probability_call c(random, 150, 150, 2, 1, 16);
    c.log_f.fill([&] { return random.uniform(-4, 0); });
    CHECK(
        check_mass<TestType>(c, [&](auto t, heed::pruning p) {
          using X = decltype(t);
          return std::tuple(heed::fox<X>{c.log_f.template read<X>(), heed::gate::inside_scale, p});
        }) > 1000);
  }
}

TEMPLATE_TEST_CASE("pruning under masks leaves out at most the tolerance", "", float, double) {
  random_source random(2);
  const std::vector<std::int64_t> start{11}, length{130}, cuts{0, 70, 71, 150};
  const auto shown = std::make_unique<bool[]>(150 * 150);
  for (std::size_t n = 0; n < 150 * 150; ++n) shown[n] = random.chance(0.6);
  const heed::tensor_view<const bool, 4> view(shown.get(), {1, 1, 150, 150});
  const std::array masks{heed::causal().window(60, 0),
                         heed::causal().window(60, 0).always_visible(4),
                         heed::causal().key_starts(start).key_lengths(length),
                         heed::causal().packed(cuts, cuts),
                         heed::causal().visible(view),
                         heed::window(90, 0)};
  for (const heed::mask& mask : masks) {
    probability_call c(random, 150, 150, 4, 2, 8);
    c.mask = mask;
    if (mask.key_start.given()) {  // hidden keys and gates must not stand in the way
      for (heed::index j = 0; j < 11; ++j) {
        for (heed::index h = 0; h < 2; ++h) c.k.set(NAN, 0, j, h, j % 8);
        for (heed::index h = 0; h < 4; ++h) c.log_f.set(NAN, 0, j, h);
      }
    }
    CHECK(check_mass<TestType>(c, [&](auto t, heed::pruning p) {
            return std::tuple(fox_of<decltype(t)>(c.log_f, p));
          }) > 300);
  }
}

TEST_CASE("pruning in lists leaves out at most the tolerance") {
  random_source random(3);
  probability_call c(random, 140, 150, 4, 2, 8);
  twin<1> logits({4}, layout::contiguous);
  logits.fill([&] { return random.normal(); });
  const std::vector<double> slopes{0.5, 0.0, -0.2, 0.01};
  using std::tuple;
  CHECK(check_mass<double>(c, [&](auto t, heed::pruning p) {
          return tuple(heed::rope{}, fox_of<decltype(t)>(c.log_f, p));
        }) > 1000);
  CHECK(check_mass<double>(c, [&](auto t, heed::pruning p) {
          return tuple(heed::alibi{slopes}, fox_of<decltype(t)>(c.log_f, p));
        }) > 1000);
  CHECK(check_mass<double>(c, [&](auto t, heed::pruning p) {
          return tuple(heed::softcap{2}, fox_of<decltype(t)>(c.log_f, p));
        }) > 1000);
  CHECK(check_mass<double>(c, [&](auto t, heed::pruning p) {
          return tuple(fox_of<decltype(t)>(c.log_f, p), heed::softcap{30});
        }) > 300);
  CHECK(check_mass<double>(c, [&](auto t, heed::pruning p) {
          using X = decltype(t);
          return tuple(heed::sinks<X>{logits.template read<X>()}, fox_of<X>(c.log_f, p));
        }) > 1000);
}

TEST_CASE("pruning with a bound of the caller's") {
  random_source random(4);
  probability_call c(random, 150, 150, 2, 1, 8);
  double bound = 0;
  const auto q = c.q.read<double>(), k = c.k.read<double>();
  for_each_index<4>({150, 150, 2, 1},
                    [&](heed::index i, heed::index j, heed::index h, heed::index) {
                      double dot = 0;
                      for (heed::index d = 0; d < 8; ++d) dot += q(0, i, h, d) * k(0, j, 0, d);
                      bound = std::max(bound, std::abs(dot) * c.scale);
                    });
  const auto fox = [&](const heed::pruning& p) { return fox_of<float>(c.log_f, p); };
  const auto exact = c.exact(fox_of<double>(c.log_f, {0, 0}));
  const left_out by_bound =
      compare_weights<float>(c.run<float>({16, 16}, fox({1e-4, bound})), exact);
  const left_out by_norms = compare_weights<float>(c.run<float>({16, 16}, fox({1e-4, 0})), exact);
  CHECK(by_bound.most <= 1e-4);
  CHECK(by_norms.most <= 1e-4);
  CHECK(by_bound.pairs > 0);
  // A few rows at once, as in decoding: keys are read as they are swept.
  probability_call few(random, 3, 400, 2, 1, 8);
  const auto few_exact = few.exact(fox_of<double>(few.log_f, {0, 0}));
  for (const double given : {0.0, 40.0}) {
    const auto found = few.run<float>({16, 16}, fox_of<float>(few.log_f, {1e-4, given}));
    const left_out pruned = compare_weights<float>(found, few_exact);
    CHECK(pruned.most <= 1e-4);
    CHECK(pruned.pairs > 300);
  }
}

TEST_CASE("tolerance 0 leaves out nothing, and pruning does not depend on threads") {
  random_source random(5);
  const probability_call c(random, 150, 150, 4, 2, 8);
  const auto plain = c.run<float>({16, 16}, heed::fox<float>{c.log_f.read<float>()});
  const auto zero = c.run<float>({16, 16}, fox_of<float>(c.log_f, {0, 0}));
  const auto pruned = c.run<float>({16, 16}, fox_of<float>(c.log_f, {1e-3, 0}));
  twin<4> threaded(pruned.extents(), layout::contiguous);
  heed::thread_pool threads(3);
  heed::attend(c.q.read<float>(), c.k.read<float>(), c.v.read<float>(), threaded.view<float>(),
               {.mask = c.mask, .scale = c.scale, .executor = threads, .tuning = {16, 16}},
               fox_of<float>(c.log_f, {1e-3, 0}));
  heed::index differing = 0;
  for_each_index<4>(plain.extents(), [&](auto... at) {
    if (plain.read<float>()(at...) != zero.read<float>()(at...)) ++differing;
    if (pruned.read<float>()(at...) != threaded.read<float>()(at...)) ++differing;
  });
  CHECK(differing == 0);
}

TEST_CASE("pruning is refused where nothing bounds the logits") {
  random_source random(6);
  const probability_call c(random, 20, 20, 2, 1, 4);
  const heed::fox<float> fox = fox_of<float>(c.log_f, {1e-3, 0});
  std::vector<float> zeros(400), out(800, 7.0F);
  const heed::tensor_view<float, 4> result(out, {1, 20, 2, 20});
  const heed::bias<float> bias{heed::tensor_view<const float, 4>(zeros, {1, 1, 20, 20})};
  const heed::relative<float> relative{heed::tensor_view<const float, 2>(zeros, {4, 5})};
  const auto run = [&](const auto&... mechanisms) {
    heed::attend(c.q.read<float>(), c.k.read<float>(), c.v.read<float>(), result,
                 {.mask = heed::causal()}, mechanisms...);
  };
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(run(bias, fox),
                    ContainsSubstring("heed: attend: pruning: number 1 of the list's mechanisms of "
                                      "logits does not bound the logits that it changes"));
  CHECK_THROWS_WITH(run(fox, heed::softcap{5}, relative), ContainsSubstring("pruning: number 3"));
  CHECK_THROWS_AS(run(fox_of<float>(c.log_f, {1, 0})), heed::shape_error);
  CHECK_THROWS_AS(run(fox_of<float>(c.log_f, {-1, 0})), heed::shape_error);
  CHECK_THROWS_AS(run(fox_of<float>(c.log_f, {NAN, 0})), heed::shape_error);
  CHECK_THROWS_AS(run(fox_of<float>(c.log_f, {0.1, -1})), heed::shape_error);
  for (const float o : out) CHECK(o == 7.0F);
  CHECK_NOTHROW(run(bias, fox_of<float>(c.log_f, {0, 0})));
}
