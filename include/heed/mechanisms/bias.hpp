// Additive bias.
//
//   L_ij <- L_ij + values[b, h, i, j]
//
// -inf is allowed and gives weight 0; a row of nothing but -inf counts as one that sees no key.
// Axes of extent 1 repeat. In a packed batch i and j are the packed indices. Cost: one addition per
// score, and the memory traffic of the values.
#pragma once

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/panel.hpp"

namespace heed::inline HEED_ABI {

template <class T>
struct bias {
  tensor_view<const T, 4> values;  // [B|1, Hq|1, T|1, S|1]

  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::plan | hook::forward;

  // Throws shape_error for an axis that is neither 1 nor the extent of the call.
  void check(const problem& p) const {
    check_extents("bias", "values", values,
                  {{{"batch", p.B, true},
                    {"query heads", p.Hq, true},
                    {"queries", p.T, true},
                    {"keys", p.S, true}}});
  }

  template <class Context>
  auto plan(const Context& c) const {
    return line_adder{values, c.sequence.batch, c.sequence.first_query, c.sequence.first_key};
  }

 private:
  struct line_adder {
    tensor_view<const T, 4> values;
    index batch, first_query, first_key;

    // Where index i of an axis lies: every index at once where the axis has extent 1.
    index offset(int axis, index i) const noexcept {
      return values.extent(axis) == 1 ? 0 : i * values.stride(axis);
    }
    // L_ij <- L_ij + values[b, h, i, j]
    template <class Arch>
    void forward(const panel<T, Arch>& p) const {
      const index step = values.extent(3) == 1 ? 0 : values.stride(3);
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          const T* from = values.data() + offset(0, batch) + offset(1, p.head + g) +
                          offset(2, first_query + p.row + r);
          T* line = p.line(g, r);
          const index last = (std::min)(p.last, p.visible->s.S - p.column);
          for (index c = (std::max)(p.first, -p.column); c < last; ++c) {
            line[c] += from[(first_key + p.key(c)) * step];
          }
        }
      }
    }
  };
};
template <class T>
bias(tensor_view<T, 4>) -> bias<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
