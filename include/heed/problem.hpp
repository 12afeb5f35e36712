// The extents of one call and of one of its sequences, as mechanisms see them.
#pragma once

#include "heed/mask.hpp"

namespace heed::inline HEED_ABI {

// One call: q [B, T, Hq, D], k [B, S, Hkv, D], v [B, S, Hkv, Dv].
struct problem {
  index B = 0, T = 0, S = 0, Hq = 0, Hkv = 0, D = 0, Dv = 0;
  double scale = 1;

  // Query head h reads key/value head h / group().
  constexpr index group() const noexcept { return Hkv == 0 ? 1 : Hq / Hkv; }
};

// One sequence of a call: a batch entry, or one piece of a packed batch. Its rows and keys count
// from 0; row i stands at position i + position, key j at position j.
struct sequence {
  index batch = 0;        // index along B
  index first_query = 0;  // where its rows start along the call's T
  index first_key = 0;    // where its keys start along the call's S
  index T = 0, S = 0;     // its own rows and keys
  index position = 0;     // position of row 0
  index key_begin = 0;    // keys outside [key_begin, key_end) are hidden from every row
  index key_end = 0;
  index before = 0;  // tokens that stood before key 0 and are gone: a cache's ring has dropped them
};

}  // namespace heed::inline HEED_ABI
