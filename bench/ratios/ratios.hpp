// heed-ratios: figures that hold on any machine, because each compares two things measured side by
// side in one process.
#pragma once

#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "heed/heed.hpp"

namespace ratios {

using heed::index;

// A named figure; measure() returns its value.
struct entry {
  std::string name;
  std::string meaning;
  std::function<double()> measure;
};

// Each file of this folder adds its entries.
void add_softmax(std::vector<entry>& list);
void add_fox(std::vector<entry>& list);
void add_path(std::vector<entry>& list);
void add_cope(std::vector<entry>& list);
void add_mta(std::vector<entry>& list);
void add_backward(std::vector<entry>& list);
void add_decode(std::vector<entry>& list);
void add_layer(std::vector<entry>& list);

enum class clock { thread, wall };
double seconds(clock which);

// Median over `pairs` of time(f) / time(g), the two run in turns.
double time_ratio(const std::function<void()>& f, const std::function<void()>& g, int pairs = 15,
                  clock which = clock::thread);

// FLOP/s of a loop of fused multiply-adds that stays in registers (of the width the program was
// built for), from a run of about `seconds`.
double fma_rate(double seconds);

// Median over `pairs` of flops / time(f) as a part of fma_rate, interleaved.
double part_of_fma_peak(const std::function<void()>& f, double flops, int pairs = 15);

// VmHWM in MB of a child process that calls f, less its tensors (in bytes).
double extra_mb(const std::function<void()>& f, double tensor_bytes);

// Random standard normal values, scaled.
std::vector<float> normal(index count, unsigned seed, float scale = 1);

// q, k, v and out of a self-attention call, [1, T, H, D], and a workspace that is kept.
struct problem {
  index T, Hq, Hkv, D;
  std::vector<float> q_data, k_data, v_data, out_data;
  heed::workspace workspace;

  problem(index tokens, index heads, index head_size, index kv_heads = 0);
  heed::tensor_view<const float, 4> q() const { return {q_data.data(), {1, T, Hq, D}}; }
  heed::tensor_view<const float, 4> k() const { return {k_data.data(), {1, T, Hkv, D}}; }
  heed::tensor_view<const float, 4> v() const { return {v_data.data(), {1, T, Hkv, D}}; }
  heed::tensor_view<float, 4> out() { return {out_data.data(), {1, T, Hq, D}}; }
  // A [1, T, Hq] view, such as of gates.
  heed::tensor_view<const float, 3> per_head(const std::vector<float>& data) const {
    return {data.data(), {1, T, Hq}};
  }
  double tensor_bytes() const {
    return 4.0 *
           static_cast<double>(q_data.size() + k_data.size() + v_data.size() + out_data.size());
  }

  template <class... Mechanisms>
  void attend(const heed::mask& mask, const Mechanisms&... mechanisms) {
    heed::attend(q(), k(), v(), out(), {.mask = mask, .workspace = &workspace}, mechanisms...);
  }
  template <class... Mechanisms>
  void attend_on(heed::executor_ref executor, const heed::mask& mask,
                 const Mechanisms&... mechanisms) {
    heed::attend(q(), k(), v(), out(),
                 {.mask = mask, .executor = executor, .workspace = &workspace}, mechanisms...);
  }
  // FLOPs of plain causal attention: 4 H D T (T + 1) / 2.
  double causal_flops() const {
    return 2.0 * static_cast<double>(Hq * D) * static_cast<double>(T) * static_cast<double>(T + 1);
  }
};

}  // namespace ratios
