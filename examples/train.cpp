// Trains a small layer: every token is to say which token came before it. Prints the loss as it
// falls; exits with status 1 if it does not.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "heed/layers/forgetting_attention_layer.hpp"

namespace {

constexpr heed::index B = 8, T = 16, model_dim = 32;

// Adam on the layer's flat list of parameters.
class adam {
 public:
  template <class Layer>
  void step(Layer& layer, double rate) {
    const auto list = layer.parameters();
    mean_.resize(list.size());
    square_.resize(list.size());
    ++steps_;
    const double correction = std::sqrt(1 - std::pow(0.99, steps_)) / (1 - std::pow(0.9, steps_));
    for (std::size_t p = 0; p < list.size(); ++p) {
      mean_[p].resize(list[p].gradient.size());
      square_[p].resize(list[p].gradient.size());
      for (std::size_t n = 0; n < list[p].gradient.size(); ++n) {
        const double g = list[p].gradient[n];
        mean_[p][n] = 0.9 * mean_[p][n] + 0.1 * g;
        square_[p][n] = 0.99 * square_[p][n] + 0.01 * g * g;
        list[p].value[n] -=
            static_cast<float>(rate * correction * mean_[p][n] / (std::sqrt(square_[p][n]) + 1e-8));
      }
    }
  }

 private:
  std::vector<std::vector<double>> mean_, square_;
  int steps_ = 0;
};

}  // namespace

int main() {
  heed::layers::forgetting_attention_layer_options options{.model_dim = model_dim, .heads = 2};
  options.qk_norm = options.key_shift = options.output_gate = options.output_norm = true;
  auto layer = heed::layers::forgetting_attention_layer<float>(options);
  layer.initialize(1);

  // Tokens are random directions; the target of each is the one before it, of the first 0.
  std::mt19937_64 generator(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(B * T * model_dim), target(x.size()), y(x.size()), dy(x.size());
  const heed::shape<3> shape{B, T, model_dim};
  decltype(layer)::tape tape;
  adam optimiser;
  double first = 0, loss = 0;
  for (int step = 0; step <= 300; ++step) {
    for (float& value : x) value = normal(generator);
    for (std::size_t n = 0; n < x.size(); ++n) {
      const bool begins = n % (T * model_dim) < model_dim;
      target[n] = begins ? 0 : x[n - model_dim];
    }
    layer.forward({x.data(), shape}, {y.data(), shape}, tape);
    loss = 0;
    for (std::size_t n = 0; n < y.size(); ++n) {
      const float difference = y[n] - target[n];
      loss += static_cast<double>(difference * difference) / static_cast<double>(y.size());
      dy[n] = 2 * difference / static_cast<float>(y.size());
    }
    if (step == 0) first = loss;
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss);
    layer.zero_gradients();
    layer.backward({x.data(), shape}, {dy.data(), shape}, {}, tape);
    optimiser.step(layer, 0.01);
  }
  std::printf("the loss fell to %.0f %% of what it was\n", 100 * loss / first);
  return loss < 0.5 * first ? 0 : 1;
}
