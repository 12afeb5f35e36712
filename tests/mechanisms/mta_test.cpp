// MTA's stages against the reference on random calls, and the cases that others got wrong.
#include <limits>
#include <random>

#include "mechanisms/mta_call.hpp"

namespace {

using heed::conv_keys;
using heed_test::call_result;
using heed_test::check_against_reference;
using heed_test::random_problem;

constexpr std::array sides{conv_keys::both, conv_keys::left, conv_keys::right};

// Kernel keys that fit the side.
heed::index draw_keys(random_problem& x, conv_keys side) {
  const heed::index n = x.random.integer(1, 12);
  return side == conv_keys::both ? n | 1 : n;
}

random_problem draw(std::uint64_t seed, heed::index heads) {
  return random_problem(seed, {.longest = seed % 8 == 0 ? 150 : 40, .heads_multiple = heads});
}

// Every case in one call: both convolutions, both mixes, the output stages, some of them absent.
struct full_list {
  explicit full_list(random_problem& x)
      : pre(x.tensor<3>({x.call.Hq, x.random.integer(1, 9), x.random.integer(0, 6) * 2 + 1})),
        post(x.tensor<3>({x.call.Hq, x.random.integer(1, 6), x.random.integer(0, 4) * 2 + 1})),
        heads(x.tensor<2>({x.call.Hq, x.call.Hq})),
        groups(x.tensor<3>({x.call.Hq / 2, 2, 2})),
        weight(x.tensor<1>({x.call.Dv})),
        gates(x.random.chance(0.5) ? 1 : x.call.Dv),
        gate(x.tensor<2>({gates, x.call.Dv})),
        bias(x.tensor<1>({gates})) {
    const auto maybe = [&](auto& view, const auto& given) {
      if (x.random.chance(0.7)) view = given;
    };
    maybe(conv.kernel, pre.read<double>());
    maybe(mix.matrix, heads.read<double>());
    maybe(after_conv.kernel, post.read<double>());
    maybe(after_groups.matrices, groups.read<double>());
    maybe(norm.weight, weight.read<double>());
    if (x.random.chance(0.7)) head_gate = {gate.read<double>(), bias.read<double>()};
    norm.factor = 0.7;
    norm.eps = 0.01;  // outputs near 0 keep their digits
  }
  template <class T>
  void check(random_problem& x) const {
    check_against_reference<T>(x, conv, mix, after_conv, after_groups, norm, head_gate);
  }

 private:
  heed_test::twin<3> pre, post;
  heed_test::twin<2> heads;
  heed_test::twin<3> groups;
  heed_test::twin<1> weight;
  heed::index gates;
  heed_test::twin<2> gate;
  heed_test::twin<1> bias;
  heed::conv<double> conv = {};
  heed::head_mix<double> mix = {};
  heed::after<heed::conv<double>> after_conv = {};
  heed::after<heed::group_mix<double>> after_groups = {};
  heed::head_norm<double> norm = {};
  heed::head_gate<double> head_gate = {};
};

// A causal call of one head with D = Dv = T: k and v are unit vectors, so that q holds the logits
// and the output the weights.
template <class T>
std::vector<T> weights_of(std::vector<T> logits, heed::index n, const heed::attend_options<T>& o,
                          const auto&... stages) {
  std::vector<T> unit(static_cast<std::size_t>(n * n), T(0)), out(unit.size());
  for (heed::index i = 0; i < n; ++i) unit[static_cast<std::size_t>(i * n + i)] = T(1);
  const auto view = [&](std::vector<T>& x) {
    return heed::tensor_view<T, 4>(x.data(), {1, n, 1, n});
  };
  heed::attend_options<T> options = o;
  options.mask = heed::causal();
  options.scale = 1;
  heed::attend(view(logits), view(unit), view(unit), view(out), options, stages...);
  return out;
}

}  // namespace

TEST_CASE("conv: any kernel, every mask") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    random_problem x = draw(seed, 1);
    const conv_keys side = x.random.pick(sides);
    auto kernel = x.tensor<3>({x.call.Hq, x.random.integer(1, 9), draw_keys(x, side)});
    CAPTURE(seed);
    check_against_reference<double>(x, heed::conv{kernel.read<double>(), side});
  }
}

TEST_CASE("conv3: heads, queries and keys in one kernel") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    random_problem x = draw(seed, seed % 2 == 0 ? 2 : 3);
    const conv_keys side = x.random.pick(sides);
    auto kernel =
        x.tensor<4>({x.call.Hq, seed % 2 == 0 ? 2 : 3, x.random.integer(1, 7), draw_keys(x, side)});
    CAPTURE(seed);
    check_against_reference<double>(x, heed::conv3{kernel.read<double>(), side});
  }
}

TEST_CASE("mta: all stages, each there or not, in double and float") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    random_problem x = draw(seed, 2);
    CAPTURE(seed);
    full_list(x).check<double>(x);
  }
  for (std::uint64_t seed = 101; seed <= 130; ++seed) {
    random_problem x = draw(seed, 2);
    CAPTURE(seed);
    full_list(x).check<float>(x);
  }
}

TEST_CASE("Mixes of many heads, before and after softmax") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    random_problem x = draw(seed, seed % 2 == 0 ? 8 : 6);
    auto before = x.tensor<2>({x.call.Hq, x.call.Hq});
    auto groups = x.tensor<3>({2, x.call.Hq / 2, x.call.Hq / 2});
    CAPTURE(seed);
    check_against_reference<double>(x,
                                    heed::mta{heed::head_mix{before.read<double>()},
                                              heed::after{heed::group_mix{groups.read<double>()}}});
  }
}

TEST_CASE("The future never leaks through a kernel, be it huge or NaN") {
  const std::array<double, 6> kernel{0.5, -1, 2, 1, 0.25, 3};
  const heed::conv conv{heed::tensor_view<const double, 3>(kernel.data(), {1, 2, 3})};
  std::vector<double> logits{1, 0, 0, 0, 1, 2, 0, 0, 3, 1, 2, 0, 1, 0, 2, 1};
  const auto clean = weights_of(logits, 4, {}, conv, heed::after{conv});
  for (const double future : {1e9, -1e9, 1e300}) {
    logits[1] = logits[2] = logits[6] = logits[7] = future;  // above the diagonal of rows 0 and 1
    for (const heed::tuning t : {heed::tuning{}, heed::tuning{3, 3}, heed::tuning{1, 1}}) {
      CHECK(weights_of(logits, 4, {.tuning = t}, conv, heed::after{conv}) == clean);
    }
  }
}

TEST_CASE("A newest key that is NaN or infinite changes no row that does not see it") {
  heed_test::random_source random(3);
  constexpr heed::index T = 40, D = 4;
  std::vector<double> q(T * D), k(T * D), v(T * D), kernel(6 * 11), clean(T * D), out(T * D);
  for (auto* x : {&q, &k, &v, &kernel}) {
    for (double& one : *x) one = random.normal();
  }
  const auto view = [](auto& x) { return heed::tensor_view<double, 4>(x.data(), {1, T, 1, D}); };
  const heed::conv conv{heed::tensor_view<const double, 3>(kernel.data(), {1, 6, 11})};
  const auto run = [&](std::vector<double>& to, const heed::tuning& t) {
    heed::attend(view(q), view(k), view(v), view(to), {.mask = heed::causal(), .tuning = t}, conv,
                 heed::after{conv});
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const heed::tuning t : {heed::tuning{}, heed::tuning{3, 3}, heed::tuning{16, 8}}) {
    run(clean, t);
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity}) {
      const auto k_before = k, v_before = v;
      for (std::size_t n = (T - 1) * D; n < T * D; ++n) k[n] = v[n] = bad;
      run(out, t);
      k = k_before;
      v = v_before;
      // A block that meets NaN is swept again, with its sums in another order.
      for (std::size_t n = 0; n < (T - 1) * D; ++n)
        CHECK(out[n] == Approx(clean[n]).epsilon(1e-11).margin(1e-11));
      CHECK(std::isnan(out[T * D - 1]));
    }
  }
}

TEST_CASE("A short sequence under a tall kernel after softmax: rows above the first are 0") {
  std::vector<double> kernel(6 * 3, 1.0);
  const heed::conv conv{heed::tensor_view<const double, 3>(kernel.data(), {1, 6, 3})};
  // Uniform rows: P = [1], [1/2 1/2], [1/3 1/3 1/3].
  const auto p = weights_of<double>(std::vector<double>(9, 0.0), 3, {}, heed::after{conv});
  const std::vector<double> expected{1, 0, 0, 2, 2, 0, 2 + 2. / 3, 3, 0.5 + 2. / 3};
  for (std::size_t n = 0; n < 9; ++n) CHECK(p[n] == Approx(expected[n]));
  for (const std::size_t hidden : {1U, 2U, 5U}) CHECK(p[hidden] == 0);
}

TEST_CASE("Orientation of the kernel: rows end at the query, columns grow with the keys") {
  std::vector<double> logits(25);
  for (std::size_t n = 0; n < 25; ++n) logits[n] = 0.1 * static_cast<double>((7 * n) % 11);
  const auto plain = weights_of(logits, 5, {});
  std::vector<double> kernel(6, 0.0);
  const heed::conv conv{heed::tensor_view<const double, 3>(kernel.data(), {1, 2, 3})};
  kernel[3 + 1] = 1;
  CHECK(weights_of(logits, 5, {}, conv) == plain);
  const auto same = weights_of(logits, 5, {}, heed::after{conv});
  for (std::size_t n = 0; n < 25; ++n) CHECK(same[n] == Approx(plain[n]));
  kernel[3 + 1] = 0;
  kernel[0 + 2] = 1;  // P[i - 1, j + 1]
  const auto shifted = weights_of(logits, 5, {}, heed::after{conv});
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const bool there = i > 0 && j + 1 <= i - 1;
      CHECK(shifted[i * 5 + j] == Approx(there ? plain[(i - 1) * 5 + j + 1] : 0.0));
    }
  }
}

TEST_CASE("group_mix has its inputs first, head_mix its outputs") {
  random_problem x(5, {.heads_multiple = 2});
  const heed::index H = x.call.Hq;
  std::vector<double> in_out(static_cast<std::size_t>(H * 2)),
      out_in(static_cast<std::size_t>(H * H), 0.0);
  for (heed::index h = 0; h < H; ++h) {
    for (heed::index r = 0; r < 2; ++r) {
      const double w = x.random.normal();
      in_out[static_cast<std::size_t>(h / 2 * 4 + r * 2 + h % 2)] = w;
      out_in[static_cast<std::size_t>(h * H + h / 2 * 2 + r)] = w;
    }
  }
  call_result<double> a(x.call), b(x.call);
  const heed::attend_options<double> options{.mask = x.mask};
  heed::attend(x.q.read<double>(), x.k.read<double>(), x.v.read<double>(), a.out, options,
               heed::after{heed::group_mix{
                   heed::tensor_view<const double, 3>(in_out.data(), {H / 2, 2, 2})}});
  heed::attend(
      x.q.read<double>(), x.k.read<double>(), x.v.read<double>(), b.out, options,
      heed::after{heed::head_mix{heed::tensor_view<const double, 2>(out_in.data(), {H, H})}});
  CHECK(heed_test::relative_error(a.out, b.out) <= 1e-14);
}

TEST_CASE("Initial kernels: the identity changes nothing, random ones repeat with their seed") {
  random_problem x(12, {.heads_multiple = 2});
  const heed::index H = x.call.Hq;
  const auto plainly = heed_test::layout::contiguous;
  heed_test::twin<3> kernel({H, 4, 7}, plainly), groups({H / 2, 2, 2}, plainly);
  heed_test::twin<4> kernel3({H, 2, 3, 5}, plainly);
  heed_test::twin<2> heads({H, H}, plainly);
  heed::init_identity(kernel.view<double>(), conv_keys::both);
  heed::init_identity(kernel3.view<double>(), conv_keys::left);
  heed::init_identity(heads.view<double>());
  heed::init_identity(groups.view<double>());
  call_result<double> plain(x.call), same(x.call);
  const heed::attend_options<double> options{.mask = x.mask};
  heed::attend(x.q.read<double>(), x.k.read<double>(), x.v.read<double>(), plain.out, options);
  heed::attend(
      x.q.read<double>(), x.k.read<double>(), x.v.read<double>(), same.out, options,
      heed::conv{kernel.read<double>()}, heed::conv3{kernel3.read<double>(), conv_keys::left},
      heed::head_mix{heads.read<double>()}, heed::after{heed::group_mix{groups.read<double>()}});
  CHECK(heed_test::relative_error(same.out, plain.out) <= 1e-14);

  std::vector<double> a(3000), b(3000);
  const heed::tensor_view<double, 3> av(a.data(), {10, 20, 15}), bv(b.data(), {10, 20, 15});
  std::mt19937_64 one(3), two(3);
  heed::init_uniform(av, one);
  heed::init_uniform(bv, two);
  CHECK(a == b);
  CHECK(*std::min_element(a.begin(), a.end()) >= -1);
  CHECK(*std::max_element(a.begin(), a.end()) <= 1);
  CHECK(*std::max_element(a.begin(), a.end()) > 0.99);
  heed::init_normal(av, one);
  double squares = 0, largest = 0;
  for (const double v : a) {
    squares += v * v;
    largest = std::max(largest, std::abs(v));
  }
  CHECK(std::sqrt(squares / 3000) == Approx(0.3).epsilon(0.06));
  CHECK(largest <= 0.9);
  CHECK(largest > 0.75);
  heed::init_constant(av);
  CHECK(a == std::vector<double>(3000, 0.3));
}

TEST_CASE("What does not fit is refused with the argument, the axis and both extents") {
  random_problem x(3, {.heads_multiple = 2});
  const heed::index H = x.call.Hq;
  std::vector<double> some(4096, 0.5);
  const auto refused = [&](const auto& stage, const std::string& message) {
    call_result<double> r(x.call);
    CHECK_THROWS_WITH(heed::attend(x.q.read<double>(), x.k.read<double>(), x.v.read<double>(),
                                   r.out, {.mask = x.mask}, stage),
                      message);
  };
  const std::string heads = std::to_string(H);
  refused(heed::conv{heed::tensor_view<const double, 3>(some.data(), {H + 1, 2, 3})},
          "heed: conv: kernel: axis 0 (query heads) is " + std::to_string(H + 1) + ", expected " +
              heads);
  refused(
      heed::conv{heed::tensor_view<const double, 3>(some.data(), {H, 2, 4})},
      "heed: conv: kernel: axis 2 (kernel keys) is 4, expected an odd number to reach both sides");
  refused(heed::after{heed::conv{heed::tensor_view<const double, 3>(some.data(), {H, 0, 3})}},
          "heed: conv: kernel: axis 1 (kernel queries) is 0, expected at least 1");
  refused(heed::head_mix{heed::tensor_view<const double, 2>(some.data(), {H, 1})},
          "heed: head_mix: matrix: axis 1 (heads in) is 1, expected " + heads);
  refused(heed::group_mix{heed::tensor_view<const double, 3>(some.data(), {H / 2, 2, 3})},
          "heed: group_mix: matrices: axis 2 (heads out) is 3, expected 2");
  refused(heed::head_norm{heed::tensor_view<const double, 1>(some.data(), {x.call.Dv + 1})},
          "heed: head_norm: weight: axis 0 (value head size) is " + std::to_string(x.call.Dv + 1) +
              ", expected " + std::to_string(x.call.Dv));
}
