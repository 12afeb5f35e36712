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
#include "heed/kernel/reverse.hpp"

namespace heed::inline HEED_ABI {

// The gradient of `values`: summed over the axes of extent 1.
template <class T>
struct bias_grad {
  tensor_view<T, 4> values = {};
};

template <class T>
struct bias {
  tensor_view<const T, 4> values;  // [B|1, Hq|1, T|1, S|1]

  static constexpr place where = place::logits;
  static constexpr hook hooks = hook::check | hook::plan | hook::forward | hook::adds |
                                hook::gradients | hook::sums | hook::begin_backward |
                                hook::backward;
  using gradient_type = bias_grad<T>;

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
    return line_adder{values, c.sequence.batch, c.sequence.first_query, c.sequence.first_key, {}};
  }

  template <class F>
  void gradients(const bias_grad<T>& d, const F& f) const {
    f("bias.values", d.values, values);
  }
  // Every owner adds to the elements themselves.
  auto sums(const bias_grad<T>& d, const auto&) const { return d; }
  // A repeated axis may be as long as T x S: rather than copies, those who share elements take
  // turns.
  heed::turns turns(const problem& p, const bias_grad<T>& d) const {
    if (d.values.data() == nullptr) return heed::turns::none;
    if (values.extent(1) == 1 && p.Hq > 1) return heed::turns::owners;
    const bool packed = p.B == 1;  // maybe: then the sequences' rows or keys tell them apart
    const bool apart =
        packed ? (values.extent(2) > 1 || values.extent(3) > 1) : values.extent(0) == p.B;
    return apart ? heed::turns::none : heed::turns::sequences;
  }

 private:
  struct line_adder {
    tensor_view<const T, 4> values;
    index batch, first_query, first_key;
    tensor_view<T, 4> gradient;

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
    void begin_backward(const auto&, const bias_grad<T>& d) { gradient = d.values; }
    // forward: dvalues[b, h, i, j] += dL_ij
    template <class Arch>
    void backward(const reverse_panel<T, Arch>& p) const {
      if (gradient.data() == nullptr) return;
      const auto offset_in = [&](int axis, index i) {
        return values.extent(axis) == 1 ? 0 : i * gradient.stride(axis);
      };
      const index step = offset_in(3, 1);
      for (index g = 0; g < p.heads; ++g) {
        for (index r = p.begin; r < p.end; ++r) {
          T* to = gradient.data() + offset_in(0, batch) + offset_in(1, p.head + g) +
                  offset_in(2, first_query + p.row + r);
          const T* line = p.line(g, r);
          const index last = (std::min)(p.last, p.visible->s.S - p.column);
          for (index c = (std::max)(p.first, -p.column); c < last; ++c) {
            to[(first_key + p.key(c)) * step] += line[c];
          }
        }
      }
    }
  };
};
template <class T>
bias(tensor_view<T, 4>) -> bias<std::remove_const_t<T>>;
template <class T>
bias_grad(tensor_view<T, 4>) -> bias_grad<T>;

}  // namespace heed::inline HEED_ABI
