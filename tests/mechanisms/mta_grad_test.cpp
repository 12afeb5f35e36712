// Gradients of MTA's stages against differences, on random compositions and masks, with panels and
// row blocks down to 3.
#include <limits>
#include <memory>

#include "gradient.hpp"
#include "heed/heed.hpp"

namespace {

using heed::conv_keys;

using heed_test::random_problem;
using heed_test::twin;

constexpr std::array sides{conv_keys::both, conv_keys::left, conv_keys::right};

// Kernel keys that fit the side.
heed::index draw_keys(random_problem& x, conv_keys side, heed::index most) {
  const heed::index n = x.random.integer(1, most);
  return side == conv_keys::both ? n | 1 : n;
}

// Random kernels and matrices of the list
//   RoPE, convolution, mix; behind softmax: convolution over groups, mix of pairs; norm, gate
// each of them there or not.
struct drawn_stages {
  explicit drawn_stages(random_problem& x)
      : side(x.random.pick(sides)),
        after_side(x.random.pick(sides)),
        gates(x.random.chance(0.5) ? 1 : x.call.Dv),
        turned(x.call.D / 2 * 2),
        with_pre(x.random.chance(0.7)),
        with_mix(x.random.chance(0.5)),
        with_post(x.random.chance(0.5)),
        with_pairs(x.random.chance(0.5)),
        with_norm(x.random.chance(0.5)),
        with_gate(x.random.chance(0.5)),
        pre(draw<3>(x, {x.call.Hq, x.random.integer(1, 8), draw_keys(x, side, 12)})),
        mix(draw<2>(x, {x.call.Hq, x.call.Hq})),
        post(draw<4>(x, {x.call.Hq, 2, x.random.integer(1, 4), draw_keys(x, after_side, 6)})),
        pairs(draw<3>(x, {x.call.Hq / 2, 2, 2})),
        weight(draw<1>(x, {x.call.Dv})),
        gate(draw<2>(x, {gates, x.call.Dv})),
        bias(draw<1>(x, {gates})) {}

  template <class T>
  auto list(heed_test::gradient_memory<T>& to) {
    heed::conv<T> conv;
    heed::conv_grad<T> d_conv;
    if (with_pre) {
      conv = {pre->template read<T>(), side};
      d_conv = {to.like("pre", conv.kernel)};
    }
    heed::head_mix<T> heads;
    heed::head_mix_grad<T> d_heads;
    if (with_mix) {
      heads = {mix->template read<T>()};
      d_heads = {to.like("mix", heads.matrix)};
    }
    heed::conv3<T> conv3;
    heed::conv3_grad<T> d_conv3;
    if (with_post) {
      conv3 = {post->template read<T>(), after_side};
      d_conv3 = {to.like("post", conv3.kernel)};
    }
    heed::group_mix<T> groups;
    heed::group_mix_grad<T> d_groups;
    if (with_pairs) {
      groups = {pairs->template read<T>()};
      d_groups = {to.like("pairs", groups.matrices)};
    }
    heed::head_norm<T> norm;
    heed::head_norm_grad<T> d_norm;
    if (with_norm) {
      norm = {weight->template read<T>(), 0.1, 0.7};  // outputs near 0 keep their digits
      d_norm = {to.like("norm", norm.weight)};
    }
    heed::head_gate<T> head_gate;
    heed::head_gate_grad<T> d_gate;
    if (with_gate) {
      head_gate = {gate->template read<T>(), bias->template read<T>()};
      d_gate = {to.like("gate", head_gate.weight), to.like("gate bias", head_gate.bias)};
    }
    return std::tuple(heed::rope{.rotary_dim = turned},
                      heed::mta{heed::with_grad(conv, d_conv), heed::with_grad(heads, d_heads),
                                heed::after{heed::with_grad(conv3, d_conv3)},
                                heed::with_grad(heed::after{groups}, d_groups),
                                heed::with_grad(norm, d_norm), heed::with_grad(head_gate, d_gate)});
  }

 private:
  template <int Rank>
  static std::shared_ptr<twin<Rank>> draw(random_problem& x, const heed::shape<Rank>& extents) {
    auto t = std::make_shared<twin<Rank>>(extents, heed_test::layout::fused);
    t->fill([&] { return 0.5 * x.random.normal(); });
    return t;
  }

  conv_keys side, after_side;
  heed::index gates, turned;
  bool with_pre, with_mix, with_post, with_pairs, with_norm, with_gate;
  std::shared_ptr<twin<3>> pre;
  std::shared_ptr<twin<2>> mix;
  std::shared_ptr<twin<4>> post;
  std::shared_ptr<twin<3>> pairs;
  std::shared_ptr<twin<1>> weight;
  std::shared_ptr<twin<2>> gate;
  std::shared_ptr<twin<1>> bias;
};

}  // namespace

TEST_CASE("Gradients of MTA's stages, each there or not, against differences") {
  heed_test::check_gradients<float>(
      1, 60, {.longest = 30, .heads_multiple = 2},
      [](random_problem& x) {
        return [stages = drawn_stages(x)]<class T>(T, heed_test::gradient_memory<T>& to) mutable {
          return stages.list(to);
        };
      },
      2, 2e-7, 2e-4);
}

TEST_CASE("Gradients of convolutions among bias with -inf, ALiBi, soft-cap and sinks") {
  heed_test::check_gradients(101, 40, {.longest = 30}, [](random_problem& x) {
    const conv_keys side = x.random.pick(sides);
    auto one = std::make_shared<twin<3>>(
        x.tensor<3>({x.call.Hq, x.random.integer(1, 5), draw_keys(x, side, 9)}));
    auto two = std::make_shared<twin<3>>(x.tensor<3>({x.call.Hq, 3, 3}));
    auto values = std::make_shared<twin<4>>(heed::shape<4>{1, 1, x.call.T, x.call.S},
                                            heed_test::layout::contiguous);
    values->fill([&] {
      return x.random.chance(0.2) ? -std::numeric_limits<double>::infinity() : x.random.normal();
    });
    auto sinks = std::make_shared<twin<1>>(x.tensor<1>({x.call.Hq}));
    return [=]<class T>(T, heed_test::gradient_memory<T>& to) {
      const auto k1 = one->read<T>(), k2 = two->read<T>();
      const auto b = values->read<T>();
      const auto s = sinks->read<T>();
      return std::tuple(heed::alibi{}, heed::with_grad(heed::bias<T>{b}, {to.like("bias", b)}),
                        heed::with_grad(heed::conv<T>{k1, side}, {to.like("one", k1)}),
                        heed::softcap{2.0},
                        heed::with_grad(heed::conv<T>{k2}, {to.like("two", k2)}),
                        heed::with_grad(heed::sinks<T>{s}, {to.like("sinks", s)}));
    };
  });
}

TEST_CASE("Gradients of mixes of many heads, before and after softmax") {
  heed_test::check_gradients(201, 20, {.longest = 24, .heads_multiple = 6}, [](random_problem& x) {
    auto before = std::make_shared<twin<2>>(x.tensor<2>({x.call.Hq, x.call.Hq}));
    auto threes = std::make_shared<twin<3>>(x.tensor<3>({x.call.Hq / 3, 3, 3}));
    auto sixes = std::make_shared<twin<3>>(x.tensor<3>({x.call.Hq / 6, 6, 6}));
    return [=]<class T>(T, heed_test::gradient_memory<T>& to) {
      const auto w = before->read<T>();
      const auto m3 = threes->read<T>(), m6 = sixes->read<T>();
      return std::tuple(
          heed::with_grad(heed::head_mix<T>{w}, {to.like("before", w)}),
          heed::with_grad(heed::after{heed::group_mix<T>{m3}}, {to.like("threes", m3)}),
          heed::with_grad(heed::after{heed::group_mix<T>{m6}}, {to.like("sixes", m6)}));
    };
  });
}

TEST_CASE("MTA's gradients are the same bits for any number of threads") {
  for (std::uint64_t seed = 301; seed <= 310; ++seed) {
    random_problem x(seed, {.longest = 60, .heads_multiple = 2});
    if (x.call.D == 1) continue;  // nothing for RoPE to turn
    drawn_stages stages(x);
    auto make = [&]<class T>(T, heed_test::gradient_memory<T>& to) { return stages.list(to); };
    const auto one = heed_test::gradients_of<float>(x, {}, make);
    heed::thread_pool pool(3);
    const auto three = heed_test::gradients_of<float>(x, {}, make, pool);
    CAPTURE(seed);
    CHECK(one.tensors() == three.tensors());
  }
}

// What hidden keys hold reaches no gradient, and theirs are exactly 0.
TEST_CASE("NaN in masked keys and values stays out of MTA's gradients") {
  for (std::uint64_t seed = 401; seed <= 430; ++seed) {
    random_problem x(seed, {.longest = 40, .heads_multiple = 2});
    if (x.call.D == 1) continue;
    std::vector<std::int64_t> lengths;
    for (heed::index b = 0; b < x.call.B; ++b) lengths.push_back(x.random.integer(0, x.call.S));
    x.kind = heed_test::mask_kind::padded;
    x.mask = heed::full().key_lengths(lengths);
    x.q = twin<4>(x.q.extents(), heed_test::layout::fused);
    x.k = twin<4>(x.k.extents(), heed_test::layout::contiguous);
    x.v = twin<4>(x.v.extents(), heed_test::layout::contiguous);
    for (twin<4>* t : {&x.q, &x.k, &x.v}) t->fill([&] { return x.random.normal(); });
    drawn_stages stages(x);
    auto make = [&]<class T>(T, heed_test::gradient_memory<T>& to) { return stages.list(to); };
    const auto clean = heed_test::gradients_of<double>(x, {5, 7}, make);
    for (heed::index b = 0; b < x.call.B; ++b) {
      for (heed::index j = lengths[static_cast<std::size_t>(b)]; j < x.call.S; ++j) {
        for (heed::index h = 0; h < x.call.Hkv; ++h) {
          for (heed::index d = 0; d < x.call.D; ++d) {
            x.k.set(std::numeric_limits<double>::quiet_NaN(), b, j, h, d);
          }
          for (heed::index d = 0; d < x.call.Dv; ++d) {
            x.v.set(std::numeric_limits<double>::quiet_NaN(), b, j, h, d);
          }
        }
      }
    }
    const auto found = heed_test::gradients_of<double>(x, {5, 7}, make);
    CAPTURE(seed, x.text());
    CHECK(heed_test::gradient_distance(found, clean) <= 1e-12);
    heed::index wrong = 0, at = 0;
    for (const double d : found.tensors().at("k")) {
      const heed::index j = at / (x.call.Hkv * x.call.D) % std::max<heed::index>(1, x.call.S);
      const heed::index b = at++ / (x.call.Hkv * x.call.D * std::max<heed::index>(1, x.call.S));
      if (j >= lengths[static_cast<std::size_t>(b)] && d != 0) ++wrong;
    }
    CHECK(wrong == 0);
  }
}
