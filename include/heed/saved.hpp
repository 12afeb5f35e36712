// What attend can keep for attend_grad.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heed/checks.hpp"
#include "heed/options.hpp"
#include "heed/problem.hpp"

namespace heed::inline HEED_ABI {

namespace kernel {

// Where a forward sweep leaves what its reverse sweep will ask for. No data: not wanted.
template <class T>
struct saved_view {
  index T_ = 0, Hq = 0, Dv = 0;
  T* rows = nullptr;               // [B, T, Hq, Dv]
  std::int32_t* panels = nullptr;  // [B, T, Hq], by the first row of each block
  bool only = false;               // the output itself is not written

  index at(index batch, index row, index head) const noexcept {
    return (batch * T_ + row) * Hq + head;
  }
  T* row(index batch, index row, index head) const noexcept {
    return rows + at(batch, row, head) * Dv;
  }
};

}  // namespace kernel

// What the forward sweep of a call found that its output does not say, for lists that need it going
// backward: the output before the mechanisms of place output (MTA's norm and gates), and where
// pruning ended each block of rows. Other lists leave it empty.
//
//   heed::SavedForward<float> saved;
//   heed::attend(q, k, v, out, {.mask = m, .lse = lse, .saved = &saved}, mechanisms...);
//   heed::attend_grad(q, k, v, out, lse, dout, grads, {.mask = m, .saved = &saved}, mechanisms...);
//
// attend fills it anew; attend_grad reads it, and without it sweeps forward once more: the
// gradients are the same bits either way. Its memory stays for the next call.
template <class T>
class SavedForward {
 public:
  // Makes room for a call; what is not wanted is left out.
  kernel::saved_view<T> prepare(const problem& p, const tuning& sizes, bool rows, bool panels) {
    call_ = p;
    sizes_ = sizes;
    const auto count = static_cast<std::size_t>(p.B * p.T * p.Hq);
    rows_.resize(rows ? count * static_cast<std::size_t>(p.Dv) : 0);
    panels_.resize(panels ? count : 0);
    filled_ = true;
    return view();
  }
  // Throws shape_error unless it was filled by a call of the same extents and block sizes that
  // needed the same.
  kernel::saved_view<T> of(const problem& p, const tuning& sizes, bool rows, bool panels) {
    const bool same = filled_ && call_.B == p.B && call_.T == p.T && call_.S == p.S &&
                      call_.Hq == p.Hq && call_.Hkv == p.Hkv && call_.D == p.D &&
                      call_.Dv == p.Dv && sizes_.rows == sizes.rows && sizes_.panel == sizes.panel;
    const auto count = static_cast<std::size_t>(p.B * p.T * p.Hq);
    if (!same || rows_.size() != (rows ? count * static_cast<std::size_t>(p.Dv) : 0) ||
        panels_.size() != (panels ? count : 0)) {
      throw shape_error(
          "heed: attend_grad: saved: was not filled by attend with the same shapes, sizes and "
          "mechanisms");
    }
    return view();
  }

 private:
  kernel::saved_view<T> view() {
    kernel::saved_view<T> view{call_.T, call_.Hq, call_.Dv};
    if (!rows_.empty()) view.rows = rows_.data();
    if (!panels_.empty()) view.panels = panels_.data();
    return view;
  }

  problem call_;
  tuning sizes_;
  bool filled_ = false;
  std::vector<T> rows_;
  std::vector<std::int32_t> panels_;
};

namespace kernel {

// The same in scratch memory, for the one call.
template <class T>
saved_view<T> take_saved(const problem& p, bool rows, bool panels, workspace& memory) {
  const index count = p.B * p.T * p.Hq;
  saved_view<T> view{p.T, p.Hq, p.Dv};
  view.only = true;
  if (rows) view.rows = memory.take<T>(count * p.Dv);
  if (panels) view.panels = memory.take<std::int32_t>(count);
  return view;
}

}  // namespace kernel

}  // namespace heed::inline HEED_ABI
