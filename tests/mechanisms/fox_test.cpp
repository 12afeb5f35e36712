// FoX against the reference: random calls under every mask, in lists with other mechanisms, and the
// cases that other implementations got wrong.
#include "heed/mechanisms/fox.hpp"

#include <cmath>

#include "compare.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/bias.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "heed/mechanisms/softcap.hpp"

using namespace heed_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

enum class gates { mild, strong, resets, cuts, none };
constexpr std::array all_gates{gates::mild, gates::strong, gates::resets, gates::cuts, gates::none};

double draw_gate(random_source& random, gates kind) {
  switch (kind) {
    case gates::mild:
      return random.uniform(-0.1, 0);
    case gates::strong:
      return random.uniform(-9, -0.5);
    case gates::resets:
      return random.chance(0.15) ? random.uniform(-2000, -200) : random.uniform(-0.1, 0);
    case gates::cuts:
      return random.chance(0.1) ? -infinity : random.uniform(-1, 0);
    case gates::none:
      break;
  }
  return 0;
}

twin<3> draw_gates(random_problem& p, gates kind) {
  twin<3> log_f = p.tensor<3>({p.call.B, p.call.S, p.call.Hq});
  log_f.fill([&] { return draw_gate(p.random, kind); });
  return log_f;
}

template <class T>
heed::fox<T> fox_of(const twin<3>& log_f, heed::gate convention = heed::gate::outside_scale) {
  return {log_f.read<T>(), convention};
}

// Where a mask hides a row's newest keys, its visible ones may all stand behind the same decay: a
// logit of -2000 has a resolution of 1.2e-4 in float, one of -360 of 3e-5.
double tolerance_for(gates kind) {
  return kind == gates::resets ? 30 : kind == gates::strong ? 6 : 1.25;
}

heed::gate convention_of(std::uint64_t seed) {
  return seed % 3 == 0 ? heed::gate::inside_scale : heed::gate::outside_scale;
}

// One head, D = Dv = 1, q = k = 0: the logits are the decay alone.
struct decay_call {
  std::vector<float> zero, log_f, v, out, lse;

  decay_call(std::vector<float> gates_given, std::vector<float> values)
      : zero(values.size()),
        log_f(std::move(gates_given)),
        v(std::move(values)),
        out(v.size()),
        lse(v.size()) {}
  void run(const heed::mask& mask, const heed::tuning& sizes = {}) {
    const auto n = static_cast<heed::index>(v.size());
    const heed::tensor_view<const float, 4> q(zero, {1, n, 1, 1});
    heed::attend(
        q, q, heed::tensor_view<const float, 4>(v, {1, n, 1, 1}),
        heed::tensor_view<float, 4>(out, {1, n, 1, 1}),
        {.mask = mask, .lse = heed::tensor_view<float, 3>(lse, {1, n, 1}), .tuning = sizes},
        heed::fox{heed::tensor_view<const float, 3>(log_f, {1, n, 1})});
  }
};

}  // namespace

TEMPLATE_TEST_CASE("fox equals the reference on random calls", "", float, double) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    random_problem p(seed, {.newer_keys = false});
    if (!heed::hides_newer_keys(p.mask)) continue;
    const gates kind = all_gates[seed % all_gates.size()];
    const twin<3> log_f = draw_gates(p, kind);
    const auto make = [&](auto t) {
      return std::tuple(fox_of<decltype(t)>(log_f, convention_of(seed)));
    };
    check_against_reference<TestType>(p, all_tunings[seed / 5 % all_tunings.size()], make,
                                      tolerance_for(kind));
  }
}

TEMPLATE_TEST_CASE("fox equals the reference where blocks, panels and chunks meet", "", float,
                   double) {
  for (const heed::index length : {63, 64, 65, 127, 129, 360, 383, 500}) {
    for (const gates kind : all_gates) {
      random_problem p(static_cast<std::uint64_t>(length), {.newer_keys = false});
      p.call = {1, length, length, 2, 1, 16, 8, 0};
      p.mask = heed::causal();
      p.q = p.tensor<4>({1, length, 2, 16});
      p.k = p.tensor<4>({1, length, 1, 16});
      p.v = p.tensor<4>({1, length, 1, 8});
      const twin<3> log_f = draw_gates(p, kind);
      check_against_reference<TestType>(
          p, {}, [&](auto t) { return std::tuple(fox_of<decltype(t)>(log_f)); });
    }
  }
}

TEST_CASE("fox among other mechanisms") {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    random_problem p(seed + 1000, {.newer_keys = false});
    if (!heed::hides_newer_keys(p.mask)) continue;
    const gates kind = all_gates[seed / 5 % all_gates.size()];
    const twin<3> log_f = draw_gates(p, kind);
    const twin<4> values = p.tensor<4>({1, p.call.Hq, p.call.T, p.call.S});
    const twin<1> extra = p.tensor<1>({p.call.Hq});
    const auto check = [&](const auto& make) {
      check_against_reference<double>(p, all_tunings[seed % all_tunings.size()], make,
                                      2 * tolerance_for(kind));
    };
    check([&](auto t) {
      using T = decltype(t);
      return std::tuple(heed::alibi{}, fox_of<T>(log_f), heed::sinks<T>{extra.template read<T>()});
    });
    check([&](auto t) {
      using T = decltype(t);
      return std::tuple(fox_of<T>(log_f), heed::softcap{3},
                        heed::bias<T>{values.template read<T>()});
    });
    if (p.call.D % 2 != 0) continue;
    check([&](auto t) { return std::tuple(heed::rope{}, fox_of<decltype(t)>(log_f)); });
  }
}

TEST_CASE("fox: a gate of exactly 0 is a clean cut") {
  for (const heed::tuning sizes : all_tunings) {
    const auto cut = static_cast<float>(-infinity);
    decay_call c({0, 0, cut, 0}, {1, 2, 4, 8});
    c.run(heed::causal(), sizes);
    CHECK(c.out == std::vector<float>{1, 1.5F, 4, 6});
    CHECK(c.lse[3] == Catch::Approx(std::log(2.0)));
  }
}

TEST_CASE("fox: strong decay keeps neighbouring differences to 1e-5 at any distance") {
  constexpr std::size_t length = 65536;
  random_source random(5);
  std::vector<float> log_f(length), v(length, 0.0F);
  for (float& g : log_f) g = static_cast<float>(-8 * random.uniform(0.9, 1.1));
  decay_call c(log_f, v);
  // Two keys a row: lse = log(1 + e^(c_i - c_(i-1))).
  c.run(heed::causal().window(1, 0));
  double worst = 0;
  for (std::size_t i = 1; i < length; ++i) {
    const double found = std::expm1(static_cast<double>(c.lse[i]));
    const double expected = std::exp(static_cast<double>(log_f[i]));
    worst = std::max(worst, std::abs(found - expected));  // lse itself is rounded to 6e-8 of 1
  }
  CHECK(worst <= 2e-7);

  // The key before last alone, and values that make the output its weight's logit: sigmoid(c_i -
  // c_j).
  for (float& g : log_f) g = -0.05F * (g / -8);
  c = decay_call(log_f, v);
  for (std::size_t i = 0; i < length; ++i) c.v[i] = i % 2 == 0 ? 1.0F : -1.0F;
  c.run(heed::causal().window(1, 0));
  worst = 0;
  for (std::size_t i = 1; i < length; ++i) {
    const double sign = i % 2 == 0 ? 1 : -1;  // out = tanh(-(c_i - c_j) / 2) times it
    const double found = -2 * std::atanh(sign * static_cast<double>(c.out[i]));
    worst = std::max(worst, std::abs(found - static_cast<double>(log_f[i])));
  }
  CHECK(worst <= 1e-5);
}

TEST_CASE("fox: c_i - c_(i-1) of -8 is right to 1e-5 behind 65536 tokens") {
  // A logit of 8 on the older key brings the pair into balance: the output is the difference.
  constexpr heed::index length = 65536;
  random_source random(6);
  std::vector<float> log_f(length), q(2 * length), k(2 * length), v(length), out(length);
  for (heed::index i = 0; i < length; ++i) {
    const auto n = static_cast<std::size_t>(i);
    log_f[n] = static_cast<float>(-8 * random.uniform(0.9, 1.1));
    // q_i . k_(i-1) = 8 and q_i . k_i = 0: keys lie along one axis or the other in turn.
    q[2 * n + (i % 2 == 0 ? 1 : 0)] = 8;
    k[2 * n + (i % 2 == 0 ? 0 : 1)] = 1;
    v[n] = i % 2 == 0 ? 1.0F : -1.0F;
  }
  using view = heed::tensor_view<const float, 4>;
  heed::attend(view(q, {1, length, 1, 2}), view(k, {1, length, 1, 2}), view(v, {1, length, 1, 1}),
               heed::tensor_view<float, 4>(out, {1, length, 1, 1}),
               {.mask = heed::causal().window(1, 0), .scale = 1.0},
               heed::fox{heed::tensor_view<const float, 3>(log_f, {1, length, 1})});
  double worst = 0;
  for (heed::index i = 1; i < length; ++i) {
    const auto n = static_cast<std::size_t>(i);
    const double sign = i % 2 == 0 ? 1 : -1;
    const double found = -2 * std::atanh(sign * static_cast<double>(out[n])) - 8;
    worst = std::max(worst, std::abs(found - static_cast<double>(log_f[n])));
  }
  CHECK(worst <= 1e-5);
}

TEST_CASE("fox: gates that no visible path crosses are not read into a result") {
  std::vector<float> log_f(40), v(40);
  random_source random(3);
  for (std::size_t i = 0; i < 40; ++i) {
    log_f[i] = static_cast<float>(random.uniform(-0.5, 0));
    v[i] = static_cast<float>(random.normal());
  }
  const std::vector<std::int64_t> start{9}, length{30};
  const heed::mask mask = heed::causal().key_starts(start).key_lengths(length);
  for (const heed::tuning sizes : all_tunings) {
    decay_call clean(log_f, v), dirty(log_f, v);
    for (std::size_t s = 0; s <= 9; ++s) dirty.log_f[s] = static_cast<float>(nan_value);
    for (std::size_t s = 30; s < 40; ++s) dirty.log_f[s] = static_cast<float>(nan_value);
    clean.run(mask, sizes);
    dirty.run(mask, sizes);
    // The block that holds rows 30 on, whose own gates are NaN, may round otherwise.
    for (std::size_t i = 0; i < 30; ++i) CHECK(dirty.out[i] == Catch::Approx(clean.out[i]));
    for (std::size_t i = 30; i < 40; ++i) CHECK(std::isnan(dirty.out[i]));
  }
}

TEST_CASE("fox: the pieces of a packed batch start afresh") {
  const std::vector<std::int32_t> cuts{0, 5, 5, 12};
  std::vector<float> log_f(12, -0.25F), v(12);
  for (std::size_t i = 0; i < 12; ++i) v[i] = static_cast<float>(i * i);
  for (const heed::tuning sizes : all_tunings) {
    decay_call packed(log_f, v);
    packed.log_f[5] = static_cast<float>(nan_value);  // the first gate of a piece acts on nothing
    packed.run(heed::causal().packed(cuts, cuts), sizes);
    decay_call first({log_f.begin(), log_f.begin() + 5}, {v.begin(), v.begin() + 5});
    decay_call last({log_f.begin() + 5, log_f.end()}, {v.begin() + 5, v.end()});
    first.run(heed::causal(), sizes);
    last.run(heed::causal(), sizes);
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(packed.out[i] == Catch::Approx(i < 5 ? first.out[i] : last.out[i - 5]));
    }
  }
}

TEST_CASE("fox refuses masks that show newer keys, and gates of another shape") {
  std::vector<float> x(6), log_f(6), out(6, 7.0F);
  const heed::tensor_view<const float, 4> view(x, {1, 6, 1, 1});
  const heed::tensor_view<float, 4> result(out, {1, 6, 1, 1});
  const heed::tensor_view<const float, 3> good(log_f, {1, 6, 1}), bad(log_f, {1, 5, 1});
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(heed::attend(view, view, view, result, {}, heed::fox{good}),
                    ContainsSubstring("heed: fox: the mask shows keys newer than the query"));
  CHECK_THROWS_WITH(
      heed::attend(view, view, view, result, {.mask = heed::causal()}, heed::fox{bad}),
      ContainsSubstring("heed: fox: log_f: axis 1 (keys) is 5, expected 6"));
  for (const float o : out) CHECK(o == 7.0F);
}

TEST_CASE("log_sigmoid of gate logits is right at both ends") {
  std::vector<double> x{0, 1, -1, 40, -40, 1000, -1000, 1e-9, -infinity, infinity, 5, -5};
  std::vector<double> y(12);
  const heed::tensor_view<double, 3> to(y, {2, 3, 2});
  heed::log_sigmoid(heed::tensor_view<const double, 3>(x, {2, 3, 2}), to);
  const auto expected = [](double a) {
    return a < 0 ? a - std::log1p(std::exp(a)) : -std::log1p(std::exp(-a));
  };
  for (std::size_t n = 0; n < 12; ++n) {
    if (x[n] == -infinity) {
      CHECK(y[n] == -infinity);
    } else {
      CHECK(y[n] == Catch::Approx(expected(x[n])).epsilon(1e-14).margin(1e-300));
    }
  }
  heed::log_sigmoid(to, to);  // in place
  CHECK(y[0] == Catch::Approx(expected(-std::log(2.0))));
  CHECK_THROWS_AS(heed::log_sigmoid(heed::tensor_view<const double, 3>(x, {2, 3, 2}),
                                    heed::tensor_view<double, 3>(y, {2, 2, 3})),
                  heed::shape_error);
}

TEST_CASE("fixed gates are spaced evenly in the logarithm of their decay times") {
  const std::vector<double> times = heed::decay_times(3, 4, 64);
  CHECK(times[0] == Catch::Approx(4));
  CHECK(times[1] == Catch::Approx(16));
  CHECK(times[2] == Catch::Approx(64));
  CHECK(heed::decay_times(1, 4, 64).front() == Catch::Approx(4));
  CHECK(heed::decay_times(0, 4, 64).empty());
  const std::vector<double> gates = heed::fixed_log_gates(3, 0.001, 1e6);
  const std::vector<double> logits = heed::fixed_gate_logits(3, 0.001, 1e6);
  for (std::size_t h = 0; h < 3; ++h) {
    const double x = logits[h];
    const double back = x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
    CHECK(back == Catch::Approx(gates[h]).epsilon(1e-12));
  }
  CHECK_THROWS_AS(heed::decay_times(2, 0, 1), heed::shape_error);
  CHECK_THROWS_AS(heed::decay_times(2, 2, 1), heed::shape_error);
}
