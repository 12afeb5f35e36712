// The logits of a row block's last panels, which the first of two sweeps leaves to the second.
#pragma once

#include "heed/kernel/softmax.hpp"
#include "heed/kernel/unit.hpp"

namespace heed::inline HEED_ABI::kernel {

template <class T, class Arch>
class kept_logits {
 public:
  // For panels of `heads` heads and `rows` rows; at most `panels` of them, and as many as fit.
  void take(index heads, index rows, index panels, const block_sizes& sizes, workspace& memory) {
    ld_ = round_up(sizes.panel, width<T, Arch>);
    head_stride_ = rows * ld_;
    panel_size_ = heads * head_stride_;
    panels_ = (std::min)(panels, sizes.kept / panel_size_);
    data_ = memory.take<T>(panels_ * panel_size_);
  }
  // Turns to the panel that is last but `left`.
  void turn(pass which, std::size_t left) noexcept {
    const auto n = static_cast<index>(left);
    const bool any = which != pass::online && n < panels_;
    now_ = any ? data_ + n * panel_size_ : nullptr;
    ready_ = any && which == pass::weigh;
  }
  // Whether the logits of the panel at hand are there.
  bool ready() const noexcept { return ready_; }
  // Where those of a row are or will be, from the first column that its strip sees on; null:
  // nowhere.
  T* line(index g, index row) const noexcept {
    return now_ == nullptr ? nullptr : now_ + g * head_stride_ + row * ld_;
  }
  index row_stride() const noexcept { return ld_; }

 private:
  T* data_ = nullptr;  // [panels, the last one first][heads][rows][ld]
  index panels_ = 0, panel_size_ = 0, head_stride_ = 0, ld_ = 0;
  T* now_ = nullptr;
  bool ready_ = false;
};

}  // namespace heed::inline HEED_ABI::kernel
