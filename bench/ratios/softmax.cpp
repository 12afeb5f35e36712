#include <Eigen/Core>
#include <cmath>
#include <memory>

#include "ratios.hpp"

namespace ratios {

namespace {

double of_fma_peak(index T, index D) {
  problem p(T, 8, D);
  return part_of_fma_peak([&] { p.attend(heed::causal()); }, p.causal_flops());
}

double two_threads() {
  problem p(4096, 8, 64);
  heed::thread_pool pool(2);
  return time_ratio([&] { p.attend(heed::causal()); }, [&] { p.attend_on(pool, heed::causal()); },
                    15, clock::wall);
}

// Whole matrices: S = Q K^T, softmax of each row, S V.
void eigen_attention(problem& p) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using rows = Eigen::Map<const matrix, 0, Eigen::OuterStride<>>;
  const index width = p.Hq * p.D;
  for (index h = 0; h < p.Hq; ++h) {
    const auto head = [&](const std::vector<float>& data) {
      return rows(data.data() + h * p.D, p.T, p.D, Eigen::OuterStride<>(width));
    };
    matrix s = head(p.q_data) * head(p.k_data).transpose();
    s *= 1 / std::sqrt(static_cast<float>(p.D));
    for (index i = 0; i < p.T; ++i) {
      auto seen = s.row(i).head(i + 1).array();
      seen = (seen - seen.maxCoeff()).exp();
      seen /= seen.sum();
      s.row(i).tail(p.T - i - 1).setZero();
    }
    Eigen::Map<matrix, 0, Eigen::OuterStride<>>(p.out_data.data() + h * p.D, p.T, p.D,
                                                Eigen::OuterStride<>(width))
        .noalias() = s * head(p.v_data);
  }
}

double against_eigen() {
  problem p(2048, 8, 64);
  return time_ratio([&] { eigen_attention(p); }, [&] { p.attend(heed::causal()); }, 7);
}

template <class Mechanism>
double against_plain(const Mechanism& mechanism) {
  problem p(4096, 8, 64);
  return time_ratio([&] { p.attend(heed::causal(), mechanism); },
                    [&] { p.attend(heed::causal()); });
}

double window_against_plain() {
  problem p(8192, 8, 64);
  return time_ratio([&] { p.attend(heed::causal().window(1023, 0)); },
                    [&] { p.attend(heed::causal()); }, 7);
}

double memory_of_long_run() {
  const index T = 32768, H = 8, D = 64;
  const double tensors = 4.0 * 4 * static_cast<double>(T * H * D);
  return extra_mb(
      [&] {
        problem p(T, H, D);
        heed::thread_pool pool(2);
        p.attend_on(pool, heed::causal());
      },
      tensors);
}

}  // namespace

void add_softmax(std::vector<entry>& list) {
  list.push_back({"softmax_d64_t4096_of_fma_peak", "causal forward, part of the FMA peak",
                  [] { return of_fma_peak(4096, 64); }});
  list.push_back({"softmax_d128_t4096_of_fma_peak", "the same, head size 128",
                  [] { return of_fma_peak(4096, 128); }});
  list.push_back({"softmax_d64_t512_of_fma_peak", "the same, 512 tokens",
                  [] { return of_fma_peak(512, 64); }});
  list.push_back(
      {"softmax_d64_t4096_2threads_speedup", "one thread's time over two threads'", two_threads});
  list.push_back({"softmax_vs_eigen_d64_t2048",
                  "time of whole matrices in Eigen over attend's, one thread", against_eigen});
  list.push_back({"rope_vs_softmax_time", "RoPE's time over plain softmax's",
                  [] { return against_plain(heed::rope{}); }});
  list.push_back({"alibi_vs_softmax_time", "ALiBi's time over plain softmax's",
                  [] { return against_plain(heed::alibi{}); }});
  list.push_back({"window1024_vs_softmax_time_t8192",
                  "time with a window of 1024 keys over all of 8192", window_against_plain});
  list.push_back({"softmax_t32768_extra_mb", "peak resident memory beyond the tensors, two threads",
                  memory_of_long_run});
}

}  // namespace ratios
