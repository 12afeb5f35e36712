// Generates step by step with a cache: a layer reads a prompt in one call and then lives on its own
// output, two continuations from one prompt side by side. At the end the whole sequence goes
// through the layer at once; exits with status 1 if that says anything else.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "heed/layers/forgetting_attention_layer.hpp"

int main() {
  constexpr heed::index model_dim = 64, prompt = 24, steps = 40, T = prompt + steps;
  heed::layers::forgetting_attention_layer_options options{.model_dim = model_dim, .heads = 4};
  options.qk_norm = options.key_shift = options.value_shift = true;
  options.output_gate = options.output_norm = options.rope = true;
  auto layer = heed::layers::forgetting_attention_layer<float>(options);
  layer.initialize(7);

  // Hidden states of two sequences; the prompt of the first is what both begin with.
  std::vector<float> x(2 * T * model_dim), y(x.size()), whole(x.size());
  for (heed::index n = 0; n < prompt * model_dim; ++n) {
    x[static_cast<std::size_t>(n)] = std::sin(0.1F * static_cast<float>(n * (n % 7)));
  }
  const heed::tensor_view<float, 3> in(x.data(), {2, T, model_dim});
  const heed::tensor_view<float, 3> out(y.data(), {2, T, model_dim});

  auto cache = layer.make_cache(2, T);
  const heed::index first[] = {0};
  layer.decode(in.slice(0, 0, 1).slice(1, 0, prompt), out.slice(0, 0, 1).slice(1, 0, prompt), cache,
               first);
  cache.fork(0, 1);
  std::copy_n(x.begin(), prompt * model_dim, x.begin() + T * model_dim);
  std::copy_n(y.begin(), prompt * model_dim, y.begin() + T * model_dim);

  for (heed::index t = prompt; t < T; ++t) {
    for (heed::index s = 0; s < 2; ++s) {
      // What a model would sample: here the layer's output, turned a little in the second sequence.
      for (heed::index c = 0; c < model_dim; ++c) {
        in(s, t, c) = out(s, t - 1, s == 0 ? c : (c + 1) % model_dim) + 0.1F;
      }
    }
    layer.decode(in.slice(1, t, t + 1), out.slice(1, t, t + 1), cache);
    if ((t - prompt) % 10 == 0) {
      std::printf("token %2td  %8.4f %8.4f\n", t, static_cast<double>(out(0, t, 0)),
                  static_cast<double>(out(1, t, 0)));
    }
  }

  layer.forward(in, {whole.data(), {2, T, model_dim}});
  float error = 0, largest = 0;
  for (std::size_t n = 0; n < y.size(); ++n) {
    error = std::max(error, std::abs(y[n] - whole[n]));
    largest = std::max(largest, std::abs(whole[n]));
  }
  std::printf(
      "%td tokens one at a time, two continuations; largest difference from the whole at "
      "once: %.1e of %.1e\n",
      steps, static_cast<double>(error), static_cast<double>(largest));
  return error <= 1e-5F * largest ? 0 : 1;
}
