// What a layer takes beside its matrix products and its attention: norms, convolution, gates,
// copies.
#include <numeric>

#include "heed/layers/path_attention.hpp"
#include "ratios.hpp"

namespace ratios {

namespace {

constexpr index dim = 512, heads = 8;

// A PaTH-FoX layer, its hidden states, and its pieces to be run alone.
class layer_bench {
 public:
  layer_bench(index tokens)
      : layer(heed::layers::path_attention<float>(
            {.model_dim = dim, .heads = heads, .forget_gate = true})),
        T(tokens),
        x(normal(tokens * dim, 11)),
        y(x.size()) {
    layer.initialize(1);
  }
  heed::tensor_view<const float, 3> in() const { return {x.data(), {1, T, dim}}; }
  heed::tensor_view<float, 3> out() { return {y.data(), {1, T, dim}}; }

  // Every matrix product of the layer on its hidden states.
  void project() {
    auto& frame = layer.frame();
    auto& path = std::get<0>(layer.parts());
    auto& fox = std::get<1>(layer.parts());
    const heed::tensor_view<const float, 2> rows(x.data(), {T, dim});
    for (const auto* p : {&frame.query.linear, &frame.key.linear, &frame.value.linear,
                          &frame.output, &path.direction.down, &path.step, &fox.logits}) {
      run(*p, rows);
    }
    run(path.direction.up, std::as_const(products_[4]).matrix());
    next_ = 0;
  }

  decltype(heed::layers::path_attention<float>({})) layer;
  index T;
  std::vector<float> x, y;

 private:
  void run(const heed::layers::projection<float>& p,
           const heed::tensor_view<const float, 2>& from) {
    heed::layers::buffer<float>& to = products_[next_++];
    to.resize(T, p.out());
    p.forward(from, to.matrix(), {});
  }
  heed::layers::buffer<float> products_[8];
  std::size_t next_ = 0;
};

// Queries, keys, values, directions, betas and gates as the layer makes them.
struct attention_inputs {
  problem p;
  std::vector<float> w, beta, log_f;

  explicit attention_inputs(index T)
      : p(T, heads, dim / heads),
        w(normal(T * dim, 5)),
        beta(normal(T * heads, 6)),
        log_f(normal(T * heads, 7)) {
    heed::path_directions(directions(), directions());
    heed::path_betas(betas(), betas());
    const heed::tensor_view<float, 3> gates(log_f.data(), {1, T, heads});
    heed::log_sigmoid(gates, gates);
  }
  heed::tensor_view<float, 4> directions() { return {w.data(), {1, p.T, heads, dim / heads}}; }
  heed::tensor_view<float, 3> betas() { return {beta.data(), {1, p.T, heads}}; }
  heed::path<float> path() { return {.w = directions(), .beta = betas()}; }
  heed::fox<float> fox() { return {p.per_head(log_f), heed::gate::inside_scale}; }
};

double overhead_forward() {
  layer_bench bench(2048);
  attention_inputs inputs(2048);
  decltype(bench.layer)::tape tape;
  const auto whole = [&] {
    bench.layer.forward(bench.in(), bench.out(), tape, {.backward_follows = false});
  };
  const auto pieces = [&] {
    bench.project();
    inputs.p.attend(heed::causal(), inputs.path(), inputs.fox());
  };
  return time_ratio(whole, pieces, 11);
}

double overhead_decode() {
  constexpr index cached = 4096, steps = 16, room = cached + 16 * steps;
  layer_bench bench(1), prompt(cached);
  attention_inputs inputs(cached);
  auto cache = bench.layer.make_cache(1, room);
  bench.layer.decode(prompt.in(), prompt.out(), cache);
  heed::KvCache<float, heed::path<float>, heed::fox<float>> alone(
      {.heads = heads, .head_size = dim / heads, .capacity = room}, {}, inputs.path(),
      inputs.fox());
  alone.append({}, inputs.p.k(), inputs.p.v(), inputs.path(), inputs.fox());

  attention_inputs token(1);
  const auto whole = [&] {
    for (index n = 0; n < steps; ++n) bench.layer.decode(bench.in(), bench.out(), cache);
  };
  const auto pieces = [&] {
    for (index n = 0; n < steps; ++n) {
      bench.project();
      alone.append({}, token.p.k(), token.p.v(), token.path(), token.fox());
      alone.attend({}, token.p.q(), token.p.out());
    }
  };
  return time_ratio(whole, pieces, 15);
}

}  // namespace

void add_layer(std::vector<entry>& list) {
  list.push_back(
      {"layer_overhead_forward",
       "a PaTH-FoX layer's time over that of its products and its attention, 2048 tokens",
       overhead_forward});
  list.push_back(
      {"layer_overhead_decode", "the same for one token behind 4096 cached ones", overhead_decode});
}

}  // namespace ratios
