// Sums of log gates between two tokens, without prefix sums over the whole sequence.
#pragma once

#include <algorithm>
#include <cstddef>

#include "heed/kernel/simd.hpp"
#include "heed/tensor.hpp"

namespace heed::inline HEED_ABI::kernel {

// The gates of one sequence, ready to be summed. Positions outside [0, S) have gate 0.
template <class T, class Arch>
struct gate_sums {
  static constexpr index chunk = 64;

  tensor_view<const T, 3> log_f;
  double factor;  // of every gate
  index batch, first_key, S;
  index first_chunk, chunks;  // what the tables cover; other gates are read one by one
  index heads;
  // A table for each chunk: of all its gates [Hq], of its positive ones [Hq], and the gates from
  // (j, end of the chunk), [Hq][chunk] of T.
  std::byte* tables;
  double* growth;  // [Hq]: what positive gates add up to, all of them

  static std::size_t table_bytes(index heads) noexcept {
    return static_cast<std::size_t>(heads) *
           (2 * sizeof(double) + static_cast<std::size_t>(chunk) * sizeof(T));
  }
  double* whole(index n) const noexcept {
    return reinterpret_cast<double*>(tables + static_cast<std::size_t>(n - first_chunk) *
                                                  table_bytes(heads));
  }
  double* positive(index n) const noexcept { return whole(n) + heads; }
  T* within(index h, index n) const noexcept {
    return reinterpret_cast<T*>(positive(n) + heads) + h * chunk;
  }

  double gate(index h, index j) const noexcept {
    return j < 0 || j >= S ? 0 : factor * static_cast<double>(log_f(batch, first_key + j, h));
  }

  void fill_chunk(index n) const {
    for (index h = 0; h < heads; ++h) {
      double sum = 0, positives = 0;
      T* to = within(h, n);
      for (index c = chunk - 1; c >= 0; --c) {
        to[c] = static_cast<T>(sum);
        const double g = gate(h, n * chunk + c);
        sum += g;
        if (g > 0) positives += g;
      }
      whole(n)[h] = sum;
      positive(n)[h] = positives;
    }
  }
  void add_growth() const {
    for (index h = 0; h < heads; ++h) growth[h] = 0;
    for (index n = first_chunk; n < first_chunk + chunks; ++n) {
      for (index h = 0; h < heads; ++h) growth[h] += positive(n)[h];
    }
    for (index j = (first_chunk + chunks) * chunk; j < S; ++j) {
      for (index h = 0; h < heads; ++h) growth[h] += (std::max)(0.0, gate(h, j));
    }
  }

  // Adds `sum` plus the gates of (j, end) to to[j - begin], for j in [begin, end), unless `to` is
  // null. Returns `sum` plus the gates of [begin, end).
  double extend(index h, index begin, index end, double sum, T* to) const noexcept {
    for (index stop = end; stop > begin;) {
      const index n = (stop - 1 >= 0 ? (stop - 1) / chunk : (stop - chunk) / chunk);
      const index from = (std::max)(begin, n * chunk);
      const bool known =
          n >= first_chunk && n < first_chunk + chunks && (stop == (n + 1) * chunk || stop >= S);
      if (known && to != nullptr) {
        add_shifted(within(h, n) + (from - n * chunk), static_cast<T>(sum), to + (from - begin),
                    stop - from);
      }
      if (known && from == n * chunk) {
        sum += whole(n)[h];
      } else {
        for (index j = stop - 1; j >= from; --j) {
          if (!known && to != nullptr) to[j - begin] += static_cast<T>(sum);
          sum += gate(h, j);
        }
      }
      stop = from;
    }
    return sum;
  }
  double between(index h, index begin, index end) const noexcept {
    return extend(h, begin, end, 0, nullptr);
  }

  // to[i] += from[i] + shift
  static void add_shifted(const T* from, T shift, T* to, index n) noexcept {
    constexpr index w = width<T, Arch>;
    index i = 0;
    for (; i + w <= n; i += w) {
      store_vec<Arch>(to + i,
                      load_vec<Arch>(to + i) + (load_vec<Arch>(from + i) + vec<T, Arch>(shift)));
    }
    for (; i < n; ++i) to[i] += from[i] + shift;
  }
};

}  // namespace heed::inline HEED_ABI::kernel
