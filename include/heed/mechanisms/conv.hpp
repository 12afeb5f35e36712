// Convolutions of logits or probabilities, as MTA uses them.
//
//   conv    Z_h[i,j] <- sum over a, b of K_h[a,b] Z_h[i - (cq-1) + a, j - b0 + b]
//   conv3   Z_h[i,j] <- sum over r, a, b of K_h[r,a,b] Z_(m ch + r)[i - (cq-1) + a, j - b0 + b]
//
// m = h / ch is the group of head h; b0 is ck - 1, (ck - 1) / 2 or 0 (conv_keys). Invisible
// entries, entries outside of the rows and keys of the sequence in this call, and logits of -inf
// are 0 where a kernel reads them; invisible entries stay invisible. Before softmax;
// after{conv{...}} acts on the probabilities. Cost: cq ck multiply-adds per score (conv3: ch times
// as many). Golovneva et al., Multi-Token Attention, arXiv 2504.00927.
#pragma once

#include <string>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/contexts.hpp"
#include "heed/kernel/convolution.hpp"

namespace heed::inline HEED_ABI {

// Which keys a convolution over ck keys reads around key j: as many older as newer (ck odd), older
// ones only, or newer ones only.
enum class conv_keys { both, left, right };

// b0 of the equations: how many older keys a kernel of ck keys reads.
constexpr index older_keys(index ck, conv_keys side) noexcept {
  return side == conv_keys::left ? ck - 1 : side == conv_keys::right ? 0 : (ck - 1) / 2;
}

namespace detail {

// Throws shape_error unless the kernel has at least one query and one key, and an odd number of
// keys where it reaches to both sides.
inline void check_kernel_size(const char* who, int axis, index cq, index ck, conv_keys side) {
  if (cq < 1) throw_axis_error(who, "kernel", axis, "kernel queries", cq, "at least 1");
  if (ck < 1) throw_axis_error(who, "kernel", axis + 1, "kernel keys", ck, "at least 1");
  if (side == conv_keys::both && ck % 2 == 0) {
    throw_axis_error(who, "kernel", axis + 1, "kernel keys", ck,
                     "an odd number to reach both sides");
  }
}

// Per row block: the entries that the panel before began with, which this one still reads.
template <class T, class Arch>
struct convolution_rows {
  kernel::convolution_weights<T> weights;
  index older, count, kept;
  T* carry;  // [heads][count][kept]
  T* carry_end;
  T* aside;
  bool filled = false;
  // In the reverse sweep.
  kernel::convolution_adjoint<T, Arch> adjoint = {};
  bool spilled = false;

  void forward(const panel<T, Arch>& p) {
    const index begin = std::max<index>(0, p.begin - (weights.queries - 1));
    for (index g = 0; g < p.heads; ++g) {
      for (index r = begin; r < p.end && kept > 0; ++r) exchange(p, g, r);
    }
    kernel::convolution<T, Arch>(weights, aside).run(p, older);
    filled = true;
  }
  template <class Sums>
  void begin_backward(const reverse_context<T, Arch>& c, const Sums& sums) {
    double* own = sums.data == nullptr ? nullptr
                                       : sums.data + (c.rows.head - sums.head) * weights.heads *
                                                         weights.queries * weights.keys;
    adjoint = {weights, c.rows.head, c.rows.heads, c.rows.count, c.rows.panel, own, c.memory};
    spilled = false;
  }
  // forward: dZ_m[i,j] += K_h[m,a,b] dZ'_h[i + (cq-1) - a, j + b0 - b], and dK as much as it times
  // Z_m. What forward read of newer panels, they read of this one.
  void backward(const reverse_panel<T, Arch>& p) {
    adjoint.run(p, older);
    spilled = true;
  }

  // Past columns whose entries never came there is nothing to read.
  void advance(index, index) noexcept {
    if (!filled) {
      for (T* x = carry; x < carry_end; ++x) *x = T(0);
    }
    filled = false;
  }
  // advance: past such columns nothing has been read
  void retreat(index, index) noexcept {
    if (!spilled) adjoint.forget();
    spilled = false;
  }
  template <class Visit>
  void carries(const Visit& visit) {
    visit(carry, static_cast<index>(carry_end - carry));
    visit(&filled, 1);
  }

 private:
  // Puts the carried entries behind the line and carries those that it begins with.
  void exchange(const panel<T, Arch>& p, index g, index r) const noexcept {
    constexpr index w = kernel::width<T, Arch>;
    T* own = carry + (g * count + r) * kept;
    T* line = p.line(g, r);
    for (index n = 0; n < kept; n += w) {
      kernel::store_vec<Arch>(line + p.last + n, kernel::load_vec<Arch>(own + n));
    }
    for (index n = 0; n < kept; n += w) {
      kernel::store_vec<Arch>(own + n, kernel::load_vec<Arch>(line + p.first + n));
    }
  }
};

template <class T>
struct convolution_plan {
  kernel::convolution_weights<T> weights;
  index older;

  template <class Arch>
  auto rows(const rows_context<T, Arch>& c) const {
    const bool active = weights.data != nullptr;
    const index kept =
        active ? kernel::round_up(weights.keys - 1, kernel::width<T, Arch>) : index{0};
    const index size = c.heads * c.count * kept;
    T* carry = c.memory.template take<T>(size);
    for (index n = 0; n < size; ++n) carry[n] = T(0);
    T* aside = c.memory.template take<T>(
        active ? kernel::convolution<T, Arch>::aside_size(weights.heads) : index{0});
    return convolution_rows<T, Arch>{weights, older, c.count, kept, carry, carry + size, aside};
  }
};

// Packs weight(h, r, a, b).
template <class T, class Arch, class Weight>
convolution_plan<T> plan_convolution(const plan_context<T, Arch>& c, bool active, index heads,
                                     index queries, index keys, conv_keys side,
                                     const Weight& weight) {
  if (!active) return {};
  T* data = c.memory.template take<T>(c.problem.Hq * heads * queries * keys);
  T* next = data;
  for (index h = 0; h < c.problem.Hq; ++h) {
    for (index r = 0; r < heads; ++r) {
      for (index b = 0; b < keys; ++b) {
        for (index a = 0; a < queries; ++a) *next++ = static_cast<T>(weight(h, r, a, b));
      }
    }
  }
  return {{data, heads, queries, keys}, older_keys(keys, side)};
}

inline heed::geometry convolution_geometry(index heads, index queries, index keys, conv_keys side) {
  const index older = older_keys(keys, side);
  return {queries - 1, older, keys - 1 - older, heads, heed::geometry::invisible::zero};
}

// What one gradient owner adds up for kernels [Hq, heads, queries, keys], as the weights lie.
struct convolution_sums {
  index head = 0, count = 0;  // of the owner's heads
  index heads = 0, queries = 0, keys = 0;
  double* data = nullptr;

  template <class Context>
  void take(const Context& c) {
    head = c.head;
    count = c.heads;
    const index size = count * heads * queries * keys;
    data = c.memory.template take<double>(size);
    for (index n = 0; n < size; ++n) data[n] = 0;
  }
  // add(h, m, a, b, sum) for every weight.
  template <class Add>
  void each(const Add& add) const {
    const double* next = data;
    for (index h = head; h < head + count; ++h) {
      for (index m = 0; m < heads; ++m) {
        for (index b = 0; b < keys; ++b) {
          for (index a = 0; a < queries; ++a) add(h, m, a, b, *next++);
        }
      }
    }
  }
};

inline constexpr hook convolution_hooks =
    hook::check | hook::geometry | hook::active | hook::plan | hook::rows | hook::forward |
    hook::advance | hook::gradients | hook::sums | hook::carries | hook::forward_carries |
    hook::begin_backward | hook::backward | hook::retreat | hook::keeps_input;

}  // namespace detail

template <class T>
struct conv_grad {
  tensor_view<T, 3> kernel = {};
};
template <class T>
struct conv3_grad {
  tensor_view<T, 4> kernel = {};
};

// Key-query convolution, one kernel per head. The last row of the kernel is the query itself, the
// rows before it earlier queries. Without a kernel (a default view) the stage is not there.
template <class T>
struct conv {
  static constexpr place where = place::logits;
  static constexpr hook hooks = detail::convolution_hooks;
  using gradient_type = conv_grad<T>;

  tensor_view<const T, 3> kernel;  // [Hq, cq, ck]
  conv_keys side = conv_keys::both;

  bool active() const noexcept { return kernel.data() != nullptr; }

  // Throws shape_error unless the kernel is [Hq, cq, ck] with cq, ck >= 1, ck odd for both sides.
  void check(const problem& p) const {
    if (!active()) return;
    check_extents("conv", "kernel", kernel,
                  {{{"query heads", p.Hq},
                    {"kernel queries", kernel.extent(1)},
                    {"kernel keys", kernel.extent(2)}}});
    detail::check_kernel_size("conv", 1, kernel.extent(1), kernel.extent(2), side);
  }
  heed::geometry geometry() const {
    return detail::convolution_geometry(1, kernel.extent(1), kernel.extent(2), side);
  }
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    return detail::plan_convolution(
        c, active(), 1, kernel.extent(1), kernel.extent(2), side,
        [&](index h, index, index a, index b) { return kernel(h, a, b); });
  }

  template <class F>
  void gradients(const conv_grad<T>& d, const F& f) const {
    f("conv.kernel", d.kernel, kernel);
  }
  auto sums(const conv_grad<T>& d, const auto& c) const {
    sums_type s{{0, 0, 1, kernel.extent(1), kernel.extent(2)}, d.kernel};
    if (d.kernel.data() != nullptr) s.take(c);
    return s;
  }

 private:
  struct sums_type : detail::convolution_sums {
    tensor_view<T, 3> to;

    void reduce() const {
      if (data == nullptr) return;
      each([&](index h, index, index a, index b, double sum) {
        to(h, a, b) += static_cast<T>(sum);
      });
    }
  };
};
template <class T>
conv_grad(tensor_view<T, 3>) -> conv_grad<T>;
template <class T>
conv(tensor_view<T, 3>) -> conv<std::remove_const_t<T>>;
template <class T>
conv(tensor_view<T, 3>, conv_keys) -> conv<std::remove_const_t<T>>;

// Convolution over the ch heads of a group, queries and keys; head h belongs to group h / ch.
// Without a kernel (a default view) the stage is not there.
template <class T>
struct conv3 {
  static constexpr place where = place::logits;
  static constexpr hook hooks = detail::convolution_hooks;
  using gradient_type = conv3_grad<T>;

  tensor_view<const T, 4> kernel;  // [Hq, ch, cq, ck]
  conv_keys side = conv_keys::both;

  bool active() const noexcept { return kernel.data() != nullptr; }

  // Throws shape_error unless the kernel is [Hq, ch, cq, ck] with ch a divisor of Hq.
  void check(const problem& p) const {
    if (!active()) return;
    check_extents("conv3", "kernel", kernel,
                  {{{"query heads", p.Hq},
                    {"heads in a group", kernel.extent(1)},
                    {"kernel queries", kernel.extent(2)},
                    {"kernel keys", kernel.extent(3)}}});
    if (kernel.extent(1) < 1 || p.Hq % kernel.extent(1) != 0) {
      throw_axis_error("conv3", "kernel", 1, "heads in a group", kernel.extent(1),
                       "a divisor of the " + std::to_string(p.Hq) + " query heads");
    }
    detail::check_kernel_size("conv3", 2, kernel.extent(2), kernel.extent(3), side);
  }
  heed::geometry geometry() const {
    return detail::convolution_geometry(kernel.extent(1), kernel.extent(2), kernel.extent(3), side);
  }
  template <class U, class Arch>
  auto plan(const plan_context<U, Arch>& c) const {
    return detail::plan_convolution(
        c, active(), kernel.extent(1), kernel.extent(2), kernel.extent(3), side,
        [&](index h, index r, index a, index b) { return kernel(h, r, a, b); });
  }

  template <class F>
  void gradients(const conv3_grad<T>& d, const F& f) const {
    f("conv3.kernel", d.kernel, kernel);
  }
  auto sums(const conv3_grad<T>& d, const auto& c) const {
    sums_type s{{0, 0, kernel.extent(1), kernel.extent(2), kernel.extent(3)}, d.kernel};
    if (d.kernel.data() != nullptr) s.take(c);
    return s;
  }

 private:
  struct sums_type : detail::convolution_sums {
    tensor_view<T, 4> to;

    void reduce() const {
      if (data == nullptr) return;
      each([&](index h, index m, index a, index b, double sum) {
        to(h, m, a, b) += static_cast<T>(sum);
      });
    }
  };
};
template <class T>
conv3_grad(tensor_view<T, 4>) -> conv3_grad<T>;
template <class T>
conv3(tensor_view<T, 4>) -> conv3<std::remove_const_t<T>>;
template <class T>
conv3(tensor_view<T, 4>, conv_keys) -> conv3<std::remove_const_t<T>>;

}  // namespace heed::inline HEED_ABI
