// Which sequences a call consists of and which keys a row sees, from the words of mask.hpp. Shares
// nothing with the kernels' way of finding out.
#pragma once

#include <vector>

#include "heed/problem.hpp"

namespace heed::inline HEED_ABI::reference {

inline std::vector<sequence> sequences(const problem& call, const mask& m) {
  std::vector<sequence> all;
  const bool packed = m.cu_q.given();
  const index count = packed ? m.cu_q.size() - 1 : call.B;
  for (index n = 0; n < count; ++n) {
    sequence s;
    s.batch = packed ? 0 : n;
    s.first_query = packed ? m.cu_q[n] : 0;
    s.first_key = packed ? m.cu_k[n] : 0;
    s.T = packed ? m.cu_q[n + 1] - m.cu_q[n] : call.T;
    s.S = packed ? m.cu_k[n + 1] - m.cu_k[n] : call.S;
    s.position = m.query_start.given()            ? m.query_start[n]
                 : m.align == alignment::top_left ? 0
                                                  : s.S - s.T;
    s.key_begin = m.key_start.given() ? m.key_start[n] : 0;
    s.key_end = m.key_length.given() ? m.key_length[n] : s.S;
    all.push_back(s);
  }
  return all;
}

// Whether query head h of row i sees key j; i and j count within the sequence.
inline bool sees(const mask& m, const sequence& s, index h, index i, index j) {
  const index p = i + s.position;
  if (m.is_causal && j > p) return false;
  const bool in_window = p - m.left <= j && j <= p + m.right;
  if (!in_window && j >= m.first_keys) return false;
  if (j < s.key_begin || j >= s.key_end) return false;
  if (m.shown.data() == nullptr) return true;
  const auto at = [&](int axis, index n) { return m.shown.extent(axis) == 1 ? index(0) : n; };
  return m.shown(at(0, s.batch), at(1, h), at(2, s.first_query + i), at(3, s.first_key + j));
}

}  // namespace heed::inline HEED_ABI::reference
