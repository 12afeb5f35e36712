// MTA's stages with other mechanisms, and the Differential Transformer as a mix of heads.
#include <limits>

#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/bias.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "heed/mechanisms/softcap.hpp"
#include "mechanisms/mta_call.hpp"

namespace {

using heed_test::check_against_reference;
using heed_test::random_problem;

random_problem draw(std::uint64_t seed) {
  return random_problem(seed, {.longest = seed % 8 == 0 ? 150 : 40, .heads_multiple = 2});
}
// A bias that hides a third of all keys.
heed_test::twin<4> bias_with_holes(random_problem& x) {
  auto values = x.tensor<4>({x.random.chance(0.5) ? 1 : x.call.B, 1, x.call.T, x.call.S});
  values.fill([&] {
    return x.random.chance(0.33) ? -std::numeric_limits<double>::infinity() : x.random.normal();
  });
  return values;
}

}  // namespace

TEST_CASE(
    "Visible -inf reads as 0 in a convolution that follows, and stays in one that came before") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    random_problem x = draw(seed);
    auto kernel = x.tensor<3>({x.call.Hq, 3, 5});
    auto values = bias_with_holes(x);
    const heed::conv conv{kernel.read<double>()};
    const heed::bias bias{values.read<double>()};
    CAPTURE(seed);
    if (seed % 2 == 0) {
      check_against_reference<double>(x, bias, conv, heed::after{conv});
    } else {
      check_against_reference<double>(x, conv, bias);
    }
  }
}

TEST_CASE("Convolutions and mixes between RoPE, ALiBi, soft-cap and sinks") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    random_problem x = draw(seed);
    auto kernel = x.tensor<3>({x.call.Hq, 4, 3});
    auto heads = x.tensor<2>({x.call.Hq, x.call.Hq});
    auto sinks = x.tensor<1>({x.call.Hq});
    const heed::conv conv{kernel.read<double>(), heed::conv_keys::right};
    const heed::rope rope{.rotary_dim = x.call.D / 2 * 2};
    CAPTURE(seed);
    if (x.call.D > 1) {
      check_against_reference<double>(x, rope, heed::alibi{}, conv, heed::softcap{2.0},
                                      heed::sinks{sinks.read<double>()},
                                      heed::after{heed::head_mix{heads.read<double>()}});
    } else {
      check_against_reference<double>(x, heed::softcap{2.0}, conv, heed::alibi{});
    }
  }
}

TEST_CASE("Two convolutions after softmax and one before") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    random_problem x = draw(seed);
    auto one = x.tensor<3>({x.call.Hq, 3, 4});
    auto two = x.tensor<4>({x.call.Hq, 2, 2, 3});
    const heed::conv conv{one.read<double>(), heed::conv_keys::left};
    const heed::conv3 conv3{two.read<double>()};
    CAPTURE(seed);
    check_against_reference<double>(x, heed::mta{conv, heed::after{conv3}, heed::after{conv}});
  }
}

// softmax(q1 k1) - lambda softmax(q2 k2), times the whole v, normed per pair: the attention of
// the Differential Transformer, with plain loops.
TEST_CASE("The Differential Transformer's attention is a mix of head pairs after softmax") {
  constexpr heed::index T = 37, pairs = 3, D = 8, Dv = 5, layer = 4;
  random_problem x(77);
  auto q = x.tensor<4>({1, T, 2 * pairs, D}), k = x.tensor<4>({1, T, 2 * pairs, D});
  auto v = x.tensor<4>({1, T, 2 * pairs, Dv});  // the halves of pair m: heads 2m and 2m + 1
  const auto Q = q.read<double>(), K = k.read<double>(), V = v.read<double>();
  const double lambda = 0.37, factor = 1 - heed::lambda_init(layer), eps = 1e-5;

  std::vector<double> m;
  for (heed::index n = 0; n < pairs; ++n) m.insert(m.end(), {1, 1, -lambda, -lambda});
  std::vector<double> out(static_cast<std::size_t>(T * 2 * pairs * Dv));
  const heed::tensor_view<double, 4> o(out.data(), {1, T, 2 * pairs, Dv});
  heed::attend(
      Q, K, V, o, {.mask = heed::causal()},
      heed::after{heed::group_mix{heed::tensor_view<const double, 3>(m.data(), {pairs, 2, 2})}});
  // The caller's norm over both halves.
  for (heed::index i = 0; i < T; ++i) {
    for (heed::index n = 0; n < pairs; ++n) {
      heed::kernel::rms_norm_row(&o(0, i, 2 * n, 0), 2 * Dv,
                                 std::vector<double>(2 * Dv, 1.0).data(), eps, factor);
    }
  }

  const auto weights = [&](heed::index i, heed::index h) {
    std::vector<double> p;
    double sum = 0;
    for (heed::index j = 0; j <= i; ++j) {
      double dot = 0;
      for (heed::index d = 0; d < D; ++d) dot += Q(0, i, h, d) * K(0, j, h, d);
      p.push_back(std::exp(dot / std::sqrt(double(D))));
      sum += p.back();
    }
    for (double& one : p) one /= sum;
    return p;
  };
  double worst = 0;
  for (heed::index i = 0; i < T; ++i) {
    for (heed::index n = 0; n < pairs; ++n) {
      const auto one = weights(i, 2 * n), two = weights(i, 2 * n + 1);
      std::vector<double> y(2 * Dv, 0.0);
      double squares = 0;
      for (heed::index c = 0; c < 2 * Dv; ++c) {
        double& sum = y[static_cast<std::size_t>(c)];
        for (heed::index j = 0; j <= i; ++j) {
          const auto at = static_cast<std::size_t>(j);
          sum += (one[at] - lambda * two[at]) * V(0, j, 2 * n + c / Dv, c % Dv);
        }
        squares += sum * sum;
      }
      const double norm = factor / std::sqrt(squares / (2 * Dv) + eps);
      for (heed::index c = 0; c < 2 * Dv; ++c) {
        const double expected = y[static_cast<std::size_t>(c)] * norm;
        worst = std::max(worst, std::abs(o(0, i, 2 * n + c / Dv, c % Dv) - expected));
      }
    }
  }
  CHECK(worst <= 1e-13);
}
