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

namespace heed::inline HEED_ABI {

// Which components make pair n: (2n, 2n+1) as in Llama's original code and MTA, or (n, n + R/2) as
// in GPT-NeoX, flash-linear-attention and forgetting-transformer.
enum class rope_pairs { interleaved, half };

struct rope {
  double theta = 10000;
  rope_pairs pairs = rope_pairs::half;
  index rotary_dim = 0;  // even, at most D; 0: all of D
  index offset = 0;      // added to every position

  constexpr index rotated(const problem& p) const noexcept {
    return rotary_dim == 0 ? p.D : rotary_dim;
  }

  // Throws shape_error unless theta > 0 and the rotated part is even and fits into D.
  void check(const problem& p) const {
    if (!(theta > 0)) {
      throw shape_error("heed: rope: theta: is " + std::to_string(theta) + ", expected above 0");
    }
    const index r = rotated(p);
    if (r < 0 || r > p.D || r % 2 != 0) {
      throw shape_error("heed: rope: rotary_dim: is " + std::to_string(r) +
                        ", expected an even number up to the head size " + std::to_string(p.D));
    }
  }
};

}  // namespace heed::inline HEED_ABI
