// Random parameters of PaTH for random calls.
#pragma once

#include "compare.hpp"
#include "heed/mechanisms/path.hpp"

namespace heed_test {

struct path_parameters {
  twin<4> w;
  twin<3> beta;
  index chunk = 0, block = 0;

  // Directions of length 1 (sometimes of any length up to 1.2), betas in [0, 2], and all sizes of
  // chunks and blocks; NaN in w and beta where padding hides keys that no path crosses.
  explicit path_parameters(random_problem& p) {
    static constexpr std::array<std::array<index, 2>, 9> sizes{
        {{0, 0}, {3, 6}, {1, 1}, {2, 8}, {5, 5}, {7, 100}, {16, 32}, {64, 64}, {1, 64}}};
    const auto [c, b] = p.random.pick(sizes);
    chunk = c;
    block = b;
    w = p.tensor<4>({p.call.B, p.call.S, p.call.Hkv, p.call.D});
    beta = p.tensor<3>({p.call.B, p.call.S, p.call.Hkv});
    beta.fill([&] { return p.random.chance(0.1) ? 2.0 : p.random.uniform(0, 2); });
    const bool free = p.random.chance(0.2);
    for (index n = 0; n < p.call.B; ++n) {
      for (index t = 0; t < p.call.S; ++t) {
        for (index h = 0; h < p.call.Hkv; ++h) {
          set_length(n, t, h, free ? p.random.uniform(0.3, 1.2) : 1);
        }
      }
    }
    if (!w.repeats() && !beta.repeats()) spoil_uncrossed(p);
  }

  template <class T>
  heed::path<T> of() const {
    return {w.read<T>(), beta.read<T>(), chunk, block};
  }

 private:
  void set_length(index n, index t, index h, double length) {
    double sum = 1e-30;
    const index D = w.extents()[3];
    for (index d = 0; d < D; ++d) {
      const double x = w.read<double>()(n, t, h, d);
      sum += x * x;
    }
    for (index d = 0; d < D; ++d) {
      w.set(w.read<double>()(n, t, h, d) * length / std::sqrt(sum), n, t, h, d);
    }
  }
  // The first token of a sequence is never crossed, nor is padding on the left, nor what is newer
  // than all rows.
  void spoil_uncrossed(const random_problem& p) {
    for (index n = 0; n < heed::sequence_count(p.call, p.mask); ++n) {
      const heed::sequence s = heed::sequence_at(p.call, p.mask, n);
      for (index t = 0; t < s.S; ++t) {
        if (t > s.key_begin && t < s.position + s.T) continue;
        for (index h = 0; h < p.call.Hkv; ++h) {
          const double nan = std::numeric_limits<double>::quiet_NaN();
          beta.set(nan, s.batch, s.first_key + t, h);
          for (index d = 0; d < p.call.D; ++d) w.set(nan, s.batch, s.first_key + t, h, d);
        }
      }
    }
  }
};

}  // namespace heed_test
