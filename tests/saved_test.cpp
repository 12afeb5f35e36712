// What attend keeps for attend_grad: the same bits as without it, and no second forward sweep.
#include "heed/saved.hpp"

#include "catch.hpp"
#include "heed/heed.hpp"
#include "random_problem.hpp"

namespace heed_test {

namespace {

// Adds nothing to the logits, and counts how often it is asked to.
struct counting {
  static constexpr heed::place where = heed::place::logits;
  static constexpr heed::hook hooks = heed::hook::forward | heed::hook::adds | heed::hook::ceiling;
  int* calls;

  template <class T, class Arch>
  void forward(const heed::panel<T, Arch>&) const {
    ++*calls;
  }
  void ceiling(index, index, index, std::span<double>) const {}
};

// A causal call with FoX, maybe pruned, and MTA's norm and gate, maybe switched off.
struct saved_call {
  static constexpr index T = 230, H = 4, D = 8;
  bool pruned, normed;
  int calls = 0;
  std::vector<float> q, k, v, dout, log_f, norm, gate, bias;
  std::vector<float> out, lse;

  saved_call(bool with_pruning, bool with_norm) : pruned(with_pruning), normed(with_norm) {
    random_source random(3);
    for (auto* x : {&q, &k, &v, &dout}) {
      x->resize(T * H * D);
      for (float& e : *x) e = static_cast<float>(random.normal());
    }
    log_f.resize(T * H);
    for (float& e : log_f) e = static_cast<float>(random.uniform(-0.5, 0));
    norm.assign(D, 0.7F);
    gate.assign(D, 0.3F);
    bias.assign(1, 0.1F);
    out.resize(T * H * D);
    lse.resize(T * H);
  }
  heed::tensor_view<const float, 4> view(const std::vector<float>& x) const {
    return {x.data(), {1, T, H, D}};
  }
  template <class F>
  auto with_list(const F& f) {
    heed::fox<float> fox{heed::tensor_view<const float, 3>(log_f.data(), {1, T, H})};
    if (pruned) fox.prune = heed::pruning{0.1, 0};
    heed::head_norm<float> n;
    heed::head_gate<float> g;
    if (normed) {
      n.weight = {norm.data(), {D}};
      g.weight = {gate.data(), {1, D}};
      g.bias = {bias.data(), {1}};
    }
    return f(fox, counting{&calls}, n, g);
  }
  heed::attend_options<float> options(heed::SavedForward<float>* saved) {
    return {.mask = heed::causal(),
            .lse = heed::tensor_view<float, 3>(lse.data(), {1, T, H}),
            .tuning = {24, 16},
            .saved = saved};
  }
  // How often the stage was called.
  int forward(heed::SavedForward<float>* saved) {
    calls = 0;
    with_list([&](const auto&... m) {
      heed::attend(view(q), view(k), view(v), heed::tensor_view<float, 4>(out.data(), {1, T, H, D}),
                   options(saved), m...);
    });
    return calls;
  }
  int backward(heed::SavedForward<float>* saved, std::vector<float>& all) {
    const std::size_t size = q.size();
    all.assign(3 * size, 7);
    calls = 0;
    with_list([&](const auto&... m) {
      const heed::tensor_view<float, 4> dq(all.data(), {1, T, H, D}),
          dk(all.data() + size, {1, T, H, D}), dv(all.data() + 2 * size, {1, T, H, D});
      const auto o = options(saved);
      heed::attend_grad(view(q), view(k), view(v), view(out), o.lse, view(dout),
                        {.q = dq, .k = dk, .v = dv}, o, m...);
    });
    return calls;
  }
};

}  // namespace

TEST_CASE("What attend has saved spares attend_grad a forward sweep, and changes no bit") {
  for (const bool pruned : {false, true}) {
    for (const bool normed : {false, true}) {
      CAPTURE(pruned, normed);
      saved_call c(pruned, normed);
      heed::SavedForward<float> saved;
      const int forward = c.forward(&saved);
      std::vector<float> with, without;
      const int spared = c.backward(&saved, with), all = c.backward(nullptr, without);
      CHECK(forward > 0);
      CHECK(all == spared + (pruned || normed ? forward : 0));
      CHECK(with == without);
      CHECK(c.forward(nullptr) == forward);  // asking for nothing costs nothing
    }
  }
}

TEST_CASE("Pruned blocks go backward over as many panels as forward") {
  saved_call c(true, false), full(false, false);
  heed::SavedForward<float> saved, all;
  std::vector<float> d;
  CHECK(c.forward(&saved) < full.forward(&all) * 3 / 4);
  CHECK(c.backward(&saved, d) < full.backward(&all, d) * 3 / 4);
}

TEST_CASE("What another call has saved is refused before anything is written") {
  saved_call c(true, false), normed(true, true);
  heed::SavedForward<float> saved, nothing;
  std::vector<float> d;
  c.forward(&saved);
  normed.forward(nullptr);
  for (heed::SavedForward<float>* wrong : {&saved, &nothing}) {
    CHECK_THROWS_AS(normed.backward(wrong, d), heed::shape_error);
    CHECK(std::all_of(d.begin(), d.end(), [](float x) { return x == 7; }));
  }
  normed.forward(&saved);
  CHECK_NOTHROW(normed.backward(&saved, d));
}

}  // namespace heed_test
