// PaTH in lists with other mechanisms, against the reference, in double: what is of a type is seen
// where each mechanism is alone.
#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/bias.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "heed/mechanisms/softcap.hpp"
#include "path_calls.hpp"

namespace heed_test {

namespace {

// list(parameters, type) makes the mechanisms beside PaTH from a fresh random call.
template <class Draw>
void check_lists(int count, std::uint64_t seed, const Draw& draw, double tolerance_scale = 1.5) {
  int checked = 0;
  for (; checked < count; ++seed) {
    random_problem p(seed, {.newer_keys = false});
    if (!heed::hides_newer_keys(p.mask) || p.call.D == 1) continue;  // RoPE turns pairs
    const path_parameters parameters(p);
    const auto make_rest = draw(p);
    check_against_reference<double>(
        p, all_tunings[seed % all_tunings.size()],
        [&](auto t) {
          return std::tuple_cat(std::tuple(parameters.of<decltype(t)>()), make_rest(t));
        },
        tolerance_scale);
    ++checked;
  }
}

}  // namespace

TEST_CASE("path with rope and soft-cap") {
  check_lists(80, 9000, [](random_problem& p) {
    const heed::rope turn{.rotary_dim = p.call.D / 2 * 2};
    return [turn](auto) { return std::tuple(turn, heed::softcap{2.5}); };
  });
}

TEST_CASE("path with alibi") {
  check_lists(80, 9200,
              [](random_problem&) { return [](auto) { return std::tuple(heed::alibi{}); }; });
}

TEST_CASE("path with sinks, a bias and relative positions") {
  check_lists(60, 9400, [](random_problem& p) {
    auto logits = std::make_shared<twin<1>>(p.tensor<1>({p.call.Hq}));
    auto values = std::make_shared<twin<4>>(p.tensor<4>({1, p.call.Hq, p.call.T, p.call.S}));
    auto embedding = std::make_shared<twin<2>>(p.tensor<2>({p.call.D, 5}));
    return [=](auto t) {
      using T = decltype(t);
      return std::tuple(heed::relative<T>{embedding->template read<T>(), true},
                        heed::bias<T>{values->template read<T>()},
                        heed::sinks<T>{logits->template read<T>()});
    };
  });
}

TEST_CASE("path with fox, both conventions of the gate") {
  check_lists(
      120, 9600,
      [](random_problem& p) {
        auto log_f = std::make_shared<twin<3>>(p.tensor<3>({p.call.B, p.call.S, p.call.Hq}));
        const bool cuts = p.random.chance(0.3);
        log_f->fill([&] {
          return cuts && p.random.chance(0.1) ? -std::numeric_limits<double>::infinity()
                                              : p.random.uniform(-1, 0);
        });
        const heed::gate convention =
            p.random.chance(0.5) ? heed::gate::inside_scale : heed::gate::outside_scale;
        return [=](auto t) {
          using T = decltype(t);
          return std::tuple(heed::fox<T>{log_f->template read<T>(), convention});
        };
      },
      3);
}

// D = 64, D-dependent scale: logits qHk / 8 + decay against (qHk + decay) / 8.
TEST_CASE("path with fox: the gate's convention matters by the scale") {
  const std::vector<double> zero(2 * 64), gates{0, -8}, betas(2, 1.0);
  const heed::tensor_view<const double, 4> none(zero, {1, 2, 1, 64});
  const heed::path<double> path{none, {betas, {1, 2, 1}}};
  for (const bool inside : {false, true}) {
    std::vector<double> v{1, 0}, out(2), lse(2);
    heed::attend(none, none, heed::tensor_view<const double, 4>(v, {1, 2, 1, 1}),
                 heed::tensor_view<double, 4>(out, {1, 2, 1, 1}),
                 {.mask = heed::causal(), .lse = heed::tensor_view<double, 3>(lse, {1, 2, 1})},
                 path,
                 heed::fox<double>{{gates, {1, 2, 1}},
                                   inside ? heed::gate::inside_scale : heed::gate::outside_scale});
    const double weight = std::exp(inside ? -1.0 : -8.0);
    CHECK(out[1] == Catch::Approx(weight / (1 + weight)).epsilon(1e-13));
  }
}

}  // namespace heed_test
