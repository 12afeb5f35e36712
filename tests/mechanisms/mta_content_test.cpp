// MTA's stages with the mechanisms that look at content: FoX, CoPE, PaTH.
#include <cmath>

#include "heed/mechanisms/cope.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/path.hpp"
#include "mechanisms/mta_call.hpp"

namespace {

using heed_test::check_against_reference;
using heed_test::random_problem;

// Tokens' decay, some of it sudden.
heed_test::twin<3> decay(random_problem& x) {
  auto log_f = x.tensor<3>({x.call.B, x.call.S, x.call.Hq});
  log_f.fill([&] { return x.random.chance(0.1) ? -8.0 : -x.random.uniform(); });
  return log_f;
}
heed_test::twin<3> kernel(random_problem& x) {
  auto k = x.tensor<3>({x.call.Hq, x.random.integer(1, 5), 2 * x.random.integer(0, 3) + 1});
  k.fill([&] { return 0.5 * x.random.normal(); });
  return k;
}

}  // namespace

TEST_CASE("Convolutions before and behind FoX's decay, and after softmax") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    random_problem x(seed, {.longest = seed % 8 == 0 ? 150 : 40, .newer_keys = false});
    auto log_f = decay(x);
    auto one = kernel(x), two = kernel(x);
    const heed::fox fox{log_f.read<double>()};
    const heed::conv before{one.read<double>()}, behind{two.read<double>()};
    CAPTURE(seed);
    check_against_reference<double>(x, before, fox, behind, heed::after{before});
  }
}

TEST_CASE("PaTH, CoPE, a convolution, FoX and a mix of heads in one list") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    random_problem x(
        seed, {.longest = seed % 8 == 0 ? 150 : 40, .newer_keys = false, .heads_multiple = 2});
    const heed::problem& p = x.call;
    auto w = x.tensor<4>({p.B, p.S, p.Hkv, p.D});
    const double size = 1 / std::sqrt(static_cast<double>(p.D));
    w.fill([&] { return size * x.random.uniform(-1, 1); });
    auto beta = x.tensor<3>({p.B, p.S, p.Hkv});
    beta.fill([&] { return x.random.uniform(0, 2); });
    auto embedding = x.tensor<2>({p.D, x.random.integer(1, 20)});
    auto log_f = decay(x);
    auto one = kernel(x);
    auto pairs = x.tensor<3>({p.Hq / 2, 2, 2});
    CAPTURE(seed);
    check_against_reference<double>(x, heed::path{w.read<double>(), beta.read<double>()},
                                    heed::cope<double>{embedding.read<double>()},
                                    heed::conv{one.read<double>()}, heed::fox{log_f.read<double>()},
                                    heed::after{heed::group_mix{pairs.read<double>()}});
  }
}
