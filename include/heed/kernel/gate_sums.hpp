// Sums of log gates between two tokens, without prefix sums over the whole sequence.
#pragma once

#include <algorithm>

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
  index first_chunk, chunks;  // what the tables below cover; older gates are read one by one
  T* within;                  // [Hq][chunks * chunk]: gates from (j, end of j's chunk)
  double* whole;              // [Hq][chunks]: all gates of a chunk
  double* growth;             // [Hq]: what positive gates add up to, all of them

  double gate(index h, index j) const noexcept {
    return j < 0 || j >= S ? 0 : factor * static_cast<double>(log_f(batch, first_key + j, h));
  }

  void fill(index heads) {
    double* sum = growth;  // runs from right to left in each chunk; becomes growth at the end
    for (index n = chunks - 1; n >= 0; --n) {
      for (index h = 0; h < heads; ++h) sum[h] = 0;
      for (index c = chunk - 1; c >= 0; --c) {
        for (index h = 0; h < heads; ++h) {
          within[(h * chunks + n) * chunk + c] = static_cast<T>(sum[h]);
          sum[h] += gate(h, (first_chunk + n) * chunk + c);
        }
      }
      for (index h = 0; h < heads; ++h) whole[h * chunks + n] = sum[h];
    }
    for (index h = 0; h < heads; ++h) growth[h] = 0;
    for (index j = first_chunk * chunk; j < (std::min)(S, (first_chunk + chunks) * chunk); ++j) {
      for (index h = 0; h < heads; ++h) {
        if (const double g = gate(h, j); g > 0) growth[h] += g;
      }
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
        const T* table = within + (h * chunks - first_chunk) * chunk;
        add_shifted(table + from, static_cast<T>(sum), to + (from - begin), stop - from);
      }
      if (known && from == n * chunk) {
        sum += whole[h * chunks + n - first_chunk];
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
