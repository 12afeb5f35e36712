// attend_grad against differences, for the plain mechanisms in random compositions.
#include "gradient.hpp"
#include "heed/heed.hpp"

namespace {

using heed::index;
using heed_test::check_gradients;
using heed_test::gradient_memory;
using heed_test::random_problem;
using heed_test::twin;

// The parameters of a composition, drawn with the problem.
struct plain_parameters {
  index rotary, extend;
  twin<2> embedding;
  twin<4> bias;
  twin<1> sinks;

  explicit plain_parameters(random_problem& x) {
    const heed::problem& p = x.call;
    auto& r = x.random;
    const auto one_or = [&](index n) { return r.chance(0.5) ? index(1) : n; };
    rotary = p.D / 2 * 2;
    extend = r.integer(0, 1);
    embedding = x.tensor<2>({p.D, r.integer(1, 9)});
    bias = twin<4>({one_or(p.B), one_or(p.Hq), one_or(p.T), one_or(p.S)}, heed_test::layout::fused);
    bias.fill([&] { return r.normal(); });
    sinks = x.tensor<1>({p.Hq});
  }
  heed::rope turn() const {
    return {100, extend != 0 ? heed::rope_pairs::half : heed::rope_pairs::interleaved, rotary, 3};
  }
  template <class T>
  auto far(gradient_memory<T>& to) const {
    const auto e = embedding.read<T>();
    return heed::with_grad(heed::relative<T>{e, extend != 0}, {to.like("embedding", e)});
  }
  template <class T>
  auto add(gradient_memory<T>& to) const {
    const auto b = bias.read<T>();
    return heed::with_grad(heed::bias<T>{b}, {to.like("bias", b)});
  }
  template <class T>
  auto sink(gradient_memory<T>& to) const {
    const auto s = sinks.read<T>();
    return heed::with_grad(heed::sinks<T>{s}, {to.like("sinks", s)});
  }
};

// make(type, memory) of parameters and a function of them.
template <class F>
auto with_parameters(const F& list) {
  return [list](random_problem& x) {
    return
        [list, p = plain_parameters(x)]<class T>(T, gradient_memory<T>& to) { return list(p, to); };
  };
}

}  // namespace

TEST_CASE("Gradients of plain softmax under every mask") {
  check_gradients<float>(1, 60, {}, with_parameters([](auto&, auto&) { return std::tuple<>(); }));
}

TEST_CASE("Gradients through RoPE, ALiBi and the soft-cap") {
  check_gradients<float>(100, 30, {}, with_parameters([](auto& p, auto&) {
                           return std::tuple(p.turn(), heed::alibi{}, heed::softcap{1.5});
                         }),
                         2);
}

TEST_CASE("Gradients of ALiBi alone, merged into the products") {
  check_gradients(200, 20, {},
                  with_parameters([](auto&, auto&) { return std::tuple(heed::alibi{}); }));
}

TEST_CASE("Gradients of relative embeddings, sinks and additive bias") {
  check_gradients<float>(300, 40, {}, with_parameters([](auto& p, auto& to) {
                           return std::tuple(p.add(to), p.turn(), p.far(to), p.sink(to));
                         }),
                         2);
  check_gradients(400, 20, {}, with_parameters([](auto& p, auto& to) {
                    return std::tuple(p.far(to), heed::softcap{2}, p.sink(to), heed::alibi{},
                                      p.add(to), heed::softcap{3});
                  }));
}
