// Random parameters of CoPE for random calls.
#pragma once

#include "compare.hpp"
#include "heed/mechanisms/cope.hpp"

namespace heed_test {

struct cope_parameters {
  twin<3> table;
  twin<4> gate_keys;
  heed::cope_scale scale = heed::cope_scale::divided;
  heed::cope_gates gates = heed::cope_gates::keys;

  // Table lengths from 1 to beyond the keys, one table or one per head, all kinds of gates (from
  // the values where Dv = D); queries that make gates middling or hard.
  explicit cope_parameters(random_problem& p, index longest_table = 64) {
    static constexpr std::array<index, 9> lengths{1, 2, 3, 5, 12, 16, 17, 33, 64};
    static constexpr std::array strengths{0.2, 1.0, 3.0};
    const double strength = p.random.pick(strengths);
    p.q.fill([&] { return strength * p.random.normal(); });
    const index npos = std::min(longest_table, p.random.pick(lengths));
    table = p.tensor<3>({p.random.chance(0.5) ? 1 : p.call.Hq, p.call.D, npos});
    table.fill([&] { return 0.5 * p.random.normal(); });
    if (p.random.chance(0.5)) scale = heed::cope_scale::undivided;
    if (p.random.chance(0.3)) {
      gates = heed::cope_gates::separate_keys;
      gate_keys = p.tensor<4>({p.call.B, p.call.S, p.call.Hkv, p.call.D});
      spoil_padding(p);
    } else if (p.call.Dv == p.call.D && p.random.chance(0.5)) {
      gates = heed::cope_gates::values;
    }
  }

  template <class T>
  heed::cope<T> of() const {
    if (gates != heed::cope_gates::separate_keys) return {table.read<T>(), scale, gates};
    return {table.read<T>(), scale, gates, gate_keys.read<T>()};
  }

 private:
  // NaN where padding hides a key from every row.
  void spoil_padding(const random_problem& p) {
    if (gate_keys.repeats()) return;
    for_each_index<4>(gate_keys.extents(), [&](index b, index j, index h, index d) {
      const index begin = p.mask.key_start.given() ? p.mask.key_start[b] : 0;
      const index end = p.mask.key_length.given() ? p.mask.key_length[b] : p.call.S;
      if (j < begin || j >= end) {
        gate_keys.set(std::numeric_limits<double>::quiet_NaN(), b, j, h, d);
      }
    });
  }
};

}  // namespace heed_test
