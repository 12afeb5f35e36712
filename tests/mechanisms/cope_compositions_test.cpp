// CoPE in lists with other mechanisms, against the composed references, in double: what is of a
// type is seen where each mechanism is alone.
#include "heed/mechanisms/bias.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/path.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "heed/mechanisms/softcap.hpp"
#include "mechanisms/cope_calls.hpp"

using namespace heed_test;

namespace {

// check(p, sizes, make) for `count` random calls; list(p, m) returns make.
template <class List>
void check_list(std::uint64_t first_seed, int count, const random_limits& limits, List list,
                double scale_of_tolerance = 4) {
  for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(count);
       ++seed) {
    random_problem p(seed, limits);
    const cope_parameters m(p);
    check_against_reference<double>(p, all_tunings[seed % all_tunings.size()], list(p, m),
                                    scale_of_tolerance);
  }
}

}  // namespace

TEST_CASE("cope with relative positions, which do not enter the gates") {
  check_list(1000, 60, {}, [](random_problem& p, const cope_parameters& m) {
    return [&m, e = p.tensor<2>({p.call.D, p.random.integer(1, 12)}),
            extend = p.random.chance(0.5)](auto zero) {
      using T = decltype(zero);
      return std::tuple(m.of<T>(), heed::relative<T>{e.template read<T>(), extend});
    };
  });
}

TEST_CASE("cope after a soft-cap or a bias reads what they made of the logits") {
  check_list(2000, 40, {}, [](random_problem&, const cope_parameters& m) {
    return [&m](auto zero) {
      return std::tuple(heed::softcap{2.0}, m.of<decltype(zero)>(), heed::softcap{5.0});
    };
  });
  // -inf closes gates.
  check_list(3000, 40, {}, [](random_problem& p, const cope_parameters& m) {
    auto b = p.tensor<4>({1, p.call.Hq, p.call.T, p.call.S});
    b.fill([&] {
      return p.random.chance(0.2) ? -std::numeric_limits<double>::infinity() : p.random.normal();
    });
    return [&m, b = std::move(b)](auto zero) {
      using T = decltype(zero);
      return std::tuple(heed::bias<T>{b.template read<T>()}, m.of<T>());
    };
  });
}

TEST_CASE("cope with RoPE reads the caller's query for positions") {
  random_limits limits;
  for (std::uint64_t seed = 4000; seed < 4060; ++seed) {
    random_problem p(seed, limits);
    const cope_parameters m(p);
    const heed::rope turn{
        100, p.call.D % 2 == 0 ? heed::rope_pairs::half : heed::rope_pairs::interleaved,
        p.call.D / 2 * 2};
    if (p.call.D < 2) continue;
    check_against_reference<double>(
        p, all_tunings[seed % all_tunings.size()],
        [&](auto zero) { return std::tuple(turn, m.of<decltype(zero)>()); }, 4);
  }
}

TEST_CASE("cope with attention sinks") {
  check_list(5000, 30, {}, [](random_problem& p, const cope_parameters& m) {
    return [&m, s = p.tensor<1>({p.call.Hq})](auto zero) {
      using T = decltype(zero);
      return std::tuple(heed::sinks<T>{s.template read<T>()}, m.of<T>());
    };
  });
}

TEST_CASE("cope on top of PaTH") {
  check_list(6000, 40, {.newer_keys = false}, [](random_problem& p, const cope_parameters& m) {
    auto w = p.tensor<4>({p.call.B, p.call.S, p.call.Hkv, p.call.D});
    const double size = 1 / std::sqrt(static_cast<double>(p.call.D));
    w.fill([&] { return size * p.random.uniform(-1, 1); });
    auto beta = p.tensor<3>({p.call.B, p.call.S, p.call.Hkv});
    beta.fill([&] { return p.random.uniform(0, 2); });
    return [&m, w = std::move(w), beta = std::move(beta)](auto zero) {
      using T = decltype(zero);
      return std::tuple(heed::path<T>{w.template read<T>(), beta.template read<T>()}, m.of<T>());
    };
  });
}

TEST_CASE("cope before and after a convolution and a mix of heads") {
  const auto kernel_of = [](random_problem& p) {
    auto kernel = p.tensor<3>({p.call.Hq, p.random.integer(1, 3), 3});
    kernel.fill([&] { return 0.5 * p.random.normal(); });
    return kernel;
  };
  check_list(7000, 40, {}, [&](random_problem& p, const cope_parameters& m) {
    return [&m, kernel = kernel_of(p)](auto zero) {
      using T = decltype(zero);
      return std::tuple(heed::conv<T>{kernel.template read<T>()}, m.of<T>());
    };
  });
  check_list(8000, 40, {}, [&](random_problem& p, const cope_parameters& m) {
    return [&m, kernel = kernel_of(p)](auto zero) {
      using T = decltype(zero);
      return std::tuple(m.of<T>(), heed::conv<T>{kernel.template read<T>()});
    };
  });
  check_list(9000, 40, {}, [&](random_problem& p, const cope_parameters& m) {
    return [&m, kernel = kernel_of(p), mix = p.tensor<2>({p.call.Hq, p.call.Hq})](auto zero) {
      using T = decltype(zero);
      return std::tuple(heed::head_mix<T>{mix.template read<T>()}, m.of<T>(),
                        heed::after{heed::conv<T>{kernel.template read<T>()}});
    };
  });
}
