// Gradients of PaTH with FoX in both places of its gate, and under halos of rows and columns.
#include "mechanisms/cope_kinks.hpp"
#include "mechanisms/path_gradients.hpp"

namespace heed_test {

TEST_CASE("path with fox: gradients under every mask, gates that cut among them") {
  check_gradients(300, 60, {.newer_keys = false}, [](random_problem& x) {
    if (!heed::hides_newer_keys(x.mask)) x.mask.is_causal = true;
    auto log_f = x.tensor<3>({x.call.B, x.call.S, x.call.Hq});
    const bool cuts = x.random.chance(0.3);
    log_f.fill([&] {
      return cuts && x.random.chance(0.1) ? -std::numeric_limits<double>::infinity()
                                          : x.random.uniform(-1, 0);
    });
    const heed::gate convention =
        x.random.chance(0.5) ? heed::gate::inside_scale : heed::gate::outside_scale;
    return [log_f, convention, p = path_parameters(x)]<class T>(T, gradient_memory<T>& to) {
      const auto f = log_f.template read<T>();
      return std::tuple(path_with_gradients(p, to),
                        heed::with_grad(heed::fox<T>{f, convention}, {to.like("log_f", f)}));
    };
  });
}

TEST_CASE("path with rope: gradients under convolutions on both sides of softmax and CoPE") {
  int done = 0;
  for (std::uint64_t seed = 500; seed < 600; ++seed) {
    cope_call c(seed, {.longest = 22, .newer_keys = false});
    const heed::problem& call = c.x.call;
    if (!heed::hides_newer_keys(c.x.mask) || call.D < 2) continue;
    const path_parameters p(c.x);
    const auto first = c.x.tensor<3>({call.Hq, 2, 3});
    const auto second = c.x.tensor<3>({call.Hq, 3, 3});
    const heed::rope turn{100, heed::rope_pairs::half, call.D / 2 * 2};
    auto make = [&]<class T>(T, gradient_memory<T>& to) {
      const auto a = first.template read<T>(), b = second.template read<T>();
      return std::tuple(turn, path_with_gradients(p, to),
                        heed::with_grad(heed::conv<T>{a}, {to.like("first", a)}),
                        cope_with_gradients(c.m, to), heed::after<heed::conv<T>>{{b}});
    };
    const std::tuple before(turn, p.of<double>(), heed::conv<double>{first.read<double>()});
    done += check_cope_differences(c, before, make);
  }
  CHECK(done >= 20);
}

}  // namespace heed_test
