// Whether the gradients of a list of mechanisms are right, for mechanisms of one's own, too:
// central differences in double against attend_grad. Needs no test framework.
//
//   heed::tensor_view<double, 2> d_embedding = ...;
//   for (const auto& [tensor, error] : heed::reference::gradient_check(
//            q, k, v, {.mask = heed::causal()}, {},
//            heed::with_grad(my_positions{embedding}, {.embedding = d_embedding}))) {
//     std::printf("%s %g\n", tensor.c_str(), error);
//   }
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "heed/attend_grad.hpp"
#include "heed/reference/attend.hpp"

namespace heed::inline HEED_ABI::reference {

// How far the gradient of one tensor is from what differences say: the largest deviation over the
// larger of the tensor's largest gradient and a hundredth of the largest gradient of the call.
struct gradient_error {
  std::string tensor;
  double error = 0;
};

struct gradient_check_options {
  int samples = 8;            // elements of each tensor to look at; besides, one direction of all
  double step = 1e-4;         // of the differences, whose error is of order step^4
  std::uint64_t seed = 1;     // of the samples, the direction and the gradient of the output
  bool on_reference = false;  // differences of reference::attend instead of attend
};

namespace detail {

// Well-mixed bits of n (splitmix64).
inline std::uint64_t mixed(std::uint64_t n) {
  n = (n + 0x9e3779b97f4a7c15U);
  n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9U;
  n = (n ^ (n >> 27)) * 0x94d049bb133111ebU;
  return n ^ (n >> 31);
}
// In (-1, 1).
inline double uniform(std::uint64_t n) {
  return static_cast<double>(mixed(n) >> 11) * 0x1p-52 - 1;
}

template <int Rank, class F>
void for_each_offset(const tensor_view<const double, Rank>& view, const F& f) {
  for (index n = 0; n < view.size(); ++n) {
    index offset = 0, rest = n;
    for (int axis = Rank; axis-- > 0;) {
      offset += rest % view.extent(axis) * view.stride(axis);
      rest /= view.extent(axis);
    }
    f(n, offset);
  }
}

// One tensor and its gradient, type-erased: elements by where they lie, since a tensor may repeat
// along an axis.
struct checked_tensor {
  std::string name;
  double* data;
  std::vector<index> offsets;     // of each element
  std::vector<double> gradients;  // of each element

  template <int Rank>
  checked_tensor(std::string tensor, const tensor_view<const double, Rank>& x,
                 const tensor_view<const double, Rank>& gradient)
      : name(std::move(tensor)), data(const_cast<double*>(x.data())) {
    for_each_offset(x, [&](index, index offset) { offsets.push_back(offset); });
    for_each_offset(gradient,
                    [&](index, index offset) { gradients.push_back(gradient.data()[offset]); });
  }
  double largest() const {
    double most = 0;
    for (const double g : gradients) most = std::abs(g) <= most ? most : std::abs(g);
    return most;
  }
  // The largest deviation. loss() is a function of the memory at data.
  double deviation(const std::function<double()>& loss, const gradient_check_options& o) const {
    if (offsets.empty()) return 0;
    double worst = deviation_along(
        loss, o.step, [&](index offset) { return uniform(o.seed + std::uint64_t(offset) * 7); });
    for (int n = 0; n < o.samples; ++n) {
      const std::uint64_t pick = mixed(o.seed * 1000003 + static_cast<std::uint64_t>(n));
      const index chosen = offsets[pick % offsets.size()];
      const double d =
          deviation_along(loss, o.step, [&](index offset) { return offset == chosen ? 1.0 : 0.0; });
      worst = d <= worst ? worst : d;
    }
    return worst;
  }

 private:
  template <class Direction>
  double deviation_along(const std::function<double()>& loss, double step,
                         const Direction& direction) const {
    std::vector<double> old;
    double expected = 0;
    for (std::size_t n = 0; n < offsets.size(); ++n) {
      old.push_back(data[offsets[n]]);
      if (direction(offsets[n]) != 0) expected += gradients[n] * direction(offsets[n]);
    }
    const auto at = [&](double t) {
      for (std::size_t n = 0; n < offsets.size(); ++n) {
        data[offsets[n]] = old[n] + t * direction(offsets[n]);
      }
      return loss();
    };
    const double near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
    at(0);
    for (std::size_t n = 0; n < offsets.size(); ++n) data[offsets[n]] = old[n];
    return std::abs((8 * near - far) / (12 * step) - expected);
  }
};

}  // namespace detail

// Compares attend_grad's gradients of q [B, T, Hq, D], k [B, S, Hkv, D], v [B, S, Hkv, Dv] and of
// every tensor that with_grad names a gradient for with differences of attend. The loss is
// sum(out * dout) + sum(lse * dlse) with random dout and dlse. Every tensor is changed a little and
// put back, those of the mechanisms, too, so none may lie in constant memory. Expect errors near
// 1e-10, and large ones where the function has a kink within two steps.
//
// Throws shape_error as attend does.
template <class... Mechanisms>
std::vector<gradient_error> gradient_check(const tensor_view<double, 4>& q,
                                           const tensor_view<double, 4>& k,
                                           const tensor_view<double, 4>& v,
                                           attend_options<double> options,
                                           const gradient_check_options& check,
                                           const Mechanisms&... mechanisms) {
  using view4 = tensor_view<double, 4>;
  const shape<4> rows{q.extent(0), q.extent(1), q.extent(2), v.extent(3)};
  const shape<3> heads{q.extent(0), q.extent(1), q.extent(2)};
  const auto buffer = [](index size) {
    return std::vector<double>(static_cast<std::size_t>(size));
  };
  const index count = rows[0] * rows[1] * rows[2];
  auto out = buffer(count * rows[3]), dout = out, lse = buffer(count), dlse = lse;
  for (std::size_t n = 0; n < dout.size(); ++n) dout[n] = detail::uniform(check.seed + 3 * n);
  for (std::size_t n = 0; n < dlse.size(); ++n) dlse[n] = detail::uniform(check.seed + 5 * n);
  auto dq = buffer(q.size()), dk = buffer(k.size()), dv = buffer(v.size());
  options.lse = {lse.data(), heads};

  const auto run = [&] {
    if constexpr ((requires(state<double> & s) { apply_reference(mechanisms, s); } && ...)) {
      if (check.on_reference) {
        reference::attend<double>(q, k, v, view4(out.data(), rows), options, mechanisms...);
        return;
      }
    }
    heed::attend(q, k, v, view4(out.data(), rows), options, mechanisms...);
  };
  const std::function<double()> loss = [&] {
    run();
    double sum = 0;
    for (std::size_t n = 0; n < out.size(); ++n) sum += out[n] * dout[n];
    for (std::size_t n = 0; n < lse.size(); ++n) sum += std::isinf(lse[n]) ? 0 : lse[n] * dlse[n];
    return sum;
  };

  loss();
  gradients<double> grads;
  grads.q = {dq.data(), q.extents()};
  grads.k = {dk.data(), k.extents()};
  grads.v = {dv.data(), v.extents()};
  grads.lse = tensor_view<const double, 3>(dlse.data(), heads);
  heed::attend_grad(q, k, v, view4(out.data(), rows), options.lse, view4(dout.data(), rows), grads,
                    options, mechanisms...);

  using const4 = tensor_view<const double, 4>;
  std::vector<detail::checked_tensor> tensors;
  tensors.emplace_back("q", const4(q), const4(grads.q));
  tensors.emplace_back("k", const4(k), const4(grads.k));
  tensors.emplace_back("v", const4(v), const4(grads.v));
  kernel::for_each(std::tuple_cat(kernel::expand(mechanisms)...), [&](const auto& stage) {
    kernel::each_gradient(
        stage, [&]<int Rank>(const char* name, const tensor_view<double, Rank>& view,
                             const tensor_view<const double, Rank>& tensor) {
          if (view.data() == nullptr) return;
          tensors.emplace_back(name, tensor, tensor_view<const double, Rank>(view));
        });
  });
  double largest = 0;
  for (const auto& t : tensors) largest = (std::max)(largest, t.largest());
  std::vector<gradient_error> errors;
  for (const auto& t : tensors) {
    const double deviation = t.deviation(loss, check);
    const double unit = (std::max)(t.largest(), largest / 100);
    errors.push_back({t.name, deviation == 0 ? 0 : deviation / unit});
  }
  loss();
  return errors;
}

}  // namespace heed::inline HEED_ABI::reference
