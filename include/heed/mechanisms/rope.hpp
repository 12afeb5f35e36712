// RoPE: rotary position embedding.
//
// Rotates pairs of components of q and k before the scores; v stays. With R = rotary_dim, pair n of
// R / 2 turns by phi = (t + offset) theta^(-2 n / R), where t is the position of the token:
//
//   (a, b) <- (a cos phi - b sin phi, a sin phi + b cos phi)
//
// Components R .. D-1 stay as they are. Key j stands at position j, query row i at the position
// that the mask gives it. Cost: O(D) a token, nothing per score.
// Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864.
#pragma once

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"

namespace heed::inline HEED_ABI {

// Which components make pair n: (2n, 2n+1) as in Llama's original code and MTA, or (n, n + R/2) as
// in GPT-NeoX, flash-linear-attention and forgetting-transformer.
enum class rope_pairs { interleaved, half };

struct rope {
  static constexpr place where = place::inputs;
  static constexpr hook hooks = hook::check | hook::active | hook::plan | hook::queries |
                                hook::keys | hook::queries_grad | hook::keys_grad;

  double theta = 10000;
  rope_pairs pairs = rope_pairs::half;
  index rotary_dim = 0;  // even, at most D; 0: all of D
  index offset = 0;      // added to every position
  bool on = true;        // false: the stage is not there

  constexpr bool active() const noexcept { return on; }
  constexpr index rotated(const problem& p) const noexcept {
    return rotary_dim == 0 ? p.D : rotary_dim;
  }

  // Throws shape_error unless theta > 0 and the rotated part is even and fits into D.
  void check(const problem& p) const {
    if (!on) return;
    if (!(theta > 0)) {
      throw shape_error("heed: rope: theta: is " + std::to_string(theta) + ", expected above 0");
    }
    const index r = rotated(p);
    if (r < 0 || r > p.D || r % 2 != 0) {
      throw shape_error("heed: rope: rotary_dim: is " + std::to_string(r) +
                        ", expected an even number up to the head size " + std::to_string(p.D));
    }
  }

  template <class T, class Arch>
  auto plan(const plan_context<T, Arch>& c) const {
    const sequence& s = c.sequence;
    const index from = c.keys_from, to = (std::min)(c.keys_to, s.S);
    plan_type<T> p{pairs, rotated(c.problem), from, nullptr, nullptr};
    if (!on) return p;
    p.key_turns = turns<T>(s.before + from, to - from, p.rotated, c.memory);
    const bool shared = s.position >= from && s.position + s.T <= to;
    p.query_turns = shared ? p.key_turns + (s.position - from) * p.rotated
                           : turns<T>(s.before + s.position, s.T, p.rotated, c.memory);
    return p;
  }

 private:
  // cos phi [R/2] and sin phi [R/2] of `count` tokens from position `first` on. Angles step from
  // token to token by one complex product in double, and start afresh often enough for that to cost
  // no digits.
  template <class T>
  const T* turns(index first, index count, index rotated, workspace& memory) const {
    constexpr index stride = 16;
    T* table = memory.take<T>(count * rotated);
    const workspace::scope scope(memory);
    const index half = rotated / 2;
    double* const speed = memory.take<double>(half);
    double *const step_cos = memory.take<double>(half), *const step_sin = memory.take<double>(half);
    double *const x = memory.take<double>(half), *const y = memory.take<double>(half);
    for (index n = 0; n < half; ++n) {
      speed[n] = std::pow(theta, -2 * static_cast<double>(n) / static_cast<double>(rotated));
      step_cos[n] = std::cos(speed[n]);
      step_sin[n] = std::sin(speed[n]);
    }
    for (index t = 0; t < count; ++t) {
      if (t % stride == 0) {
        for (index n = 0; n < half; ++n) {
          const double phi = static_cast<double>(first + t + offset) * speed[n];
          x[n] = std::cos(phi);
          y[n] = std::sin(phi);
        }
      }
      T* turn = table + t * rotated;
      for (index n = 0; n < half; ++n) {
        turn[n] = static_cast<T>(x[n]);
        turn[half + n] = static_cast<T>(y[n]);
        const double next = x[n] * step_cos[n] - y[n] * step_sin[n];
        y[n] = x[n] * step_sin[n] + y[n] * step_cos[n];
        x[n] = next;
      }
    }
    return table;
  }

  template <class T>
  struct plan_type {
    rope_pairs pairs;
    index rotated, first_key;
    const T *key_turns, *query_turns;  // [token][R], of keys from first_key on

    void queries(index, index row_begin, index row_end, T* rows, index ld) const {
      rotate<false>(query_turns + row_begin * rotated, row_end - row_begin, rows, ld);
    }
    // queries: rotates back
    void queries_grad(index, index row_begin, index row_end, T* rows, index ld) const {
      rotate<true>(query_turns + row_begin * rotated, row_end - row_begin, rows, ld);
    }
    void keys(index, index key_begin, index key_end, T* rows, index ld) const {
      rotate<false>(key_turns + (key_begin - first_key) * rotated, key_end - key_begin, rows, ld);
    }
    // keys: rotates back
    void keys_grad(index, index key_begin, index key_end, T* rows, index ld) const {
      rotate<true>(key_turns + (key_begin - first_key) * rotated, key_end - key_begin, rows, ld);
    }

   private:
    // (a, b) <- (a cos phi - b sin phi, a sin phi + b cos phi), or with -phi.
    template <bool Back>
    void rotate(const T* turn, index count, T* rows, index ld) const {
      const index half = rotated / 2;
      for (index t = 0; t < count; ++t, turn += rotated, rows += ld) {
        const T *cosine = turn, *sine = turn + half;
        if (pairs == rope_pairs::half) {
          for (index n = 0; n < half; ++n) {
            const T a = rows[n], b = rows[n + half], s = Back ? -sine[n] : sine[n];
            rows[n] = a * cosine[n] - b * s;
            rows[n + half] = a * s + b * cosine[n];
          }
        } else {
          for (index n = 0; n < half; ++n) {
            const T a = rows[2 * n], b = rows[2 * n + 1], s = Back ? -sine[n] : sine[n];
            rows[2 * n] = a * cosine[n] - b * s;
            rows[2 * n + 1] = a * s + b * cosine[n];
          }
        }
      }
    }
  };
};

}  // namespace heed::inline HEED_ABI
