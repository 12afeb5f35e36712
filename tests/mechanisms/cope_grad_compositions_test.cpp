// Gradients of CoPE among other mechanisms.
#include "heed/heed.hpp"
#include "mechanisms/cope_kinks.hpp"

using namespace heed_test;

TEST_CASE("cope: gradients behind and before stages of place logits") {
  int done = 0;
  for (std::uint64_t seed = 1000; seed < 1080; ++seed) {
    cope_call c(seed, {.longest = 14});
    const heed::problem& p = c.x.call;
    const auto added = c.x.tensor<4>({1, p.Hq, p.T, p.S});
    const auto far = c.x.tensor<2>({p.D, 5});
    const auto sinks = c.x.tensor<1>({p.Hq});
    const heed::rope turn{100, heed::rope_pairs::half, p.D / 2 * 2};
    if (p.D < 2) continue;
    auto make = [&]<class T>(T, gradient_memory<T>& to) {
      const auto b = added.template read<T>();
      const auto e = far.template read<T>();
      return std::tuple(turn, heed::with_grad(heed::bias<T>{b}, {to.like("bias", b)}),
                        heed::softcap{3}, cope_with_gradients(c.m, to),
                        heed::with_grad(heed::relative<T>{e}, {to.like("far", e)}),
                        heed::softcap{4}, heed::sinks<T>{sinks.template read<T>()});
    };
    const std::tuple before(turn, heed::bias<double>{added.read<double>()}, heed::softcap{3});
    done += check_cope_differences(c, before, make);
  }
  CHECK(done >= 30);
}

TEST_CASE("cope: gradients behind a convolution of the logits, before one of the probabilities") {
  int done = 0;
  for (std::uint64_t seed = 2000; seed < 2060; ++seed) {
    cope_call c(seed, {.longest = 14});
    const auto first = c.x.tensor<3>({c.x.call.Hq, 2, 3});
    const auto second = c.x.tensor<3>({c.x.call.Hq, 3, 3});
    auto make = [&]<class T>(T, gradient_memory<T>& to) {
      const auto a = first.template read<T>(), b = second.template read<T>();
      return std::tuple(heed::with_grad(heed::conv<T>{a}, {to.like("first", a)}),
                        cope_with_gradients(c.m, to), heed::after<heed::conv<T>>{{b}});
    };
    const std::tuple before(heed::conv<double>{first.read<double>()});
    done += check_cope_differences(c, before, make);
  }
  CHECK(done >= 20);
}
