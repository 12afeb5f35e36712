// What the parts of a layer run on.
#pragma once

#include <algorithm>
#include <type_traits>

#include "heed/parallel.hpp"
#include "heed/tensor.hpp"

namespace heed::inline HEED_ABI::layers {

// A matrix product of the caller's, c += a b: a [m, k], b [k, n], c [m, n]. c has rows without gaps
// between their elements; a and b may be transposes of such, but not both. Borrowed; called from
// several threads at a time where the executor has them. Default: none, and Eigen's is taken.
template <class T>
class product_ref {
 public:
  product_ref() noexcept = default;
  template <class F>
  requires(
      !std::is_same_v<std::remove_cv_t<F>, product_ref> &&
      std::is_invocable_v<F&, tensor_view<const T, 2>, tensor_view<const T, 2>, tensor_view<T, 2>>)
      product_ref(F& f)
  noexcept
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, const auto& a, const auto& b, const auto& c) {
          (*static_cast<F*>(object))(a, b, c);
        }) {}

  bool given() const noexcept { return call_ != nullptr; }
  void operator()(const tensor_view<const T, 2>& a, const tensor_view<const T, 2>& b,
                  const tensor_view<T, 2>& c) const {
    call_(object_, a, b, c);
  }

 private:
  void* object_ = nullptr;
  void (*call_)(void*, const tensor_view<const T, 2>&, const tensor_view<const T, 2>&,
                const tensor_view<T, 2>&) = nullptr;
};

template <class T>
struct layer_context {
  executor_ref executor = {};
  product_ref<T> product = {};

  // f(begin, end) for rows [begin, end) in blocks whose sizes do not depend on the executor, so
  // that results do not either; each begins at a whole vector of any row length.
  template <class F>
  void for_rows(index rows, const F& f) const {
    constexpr index block = 256;
    const auto work = [&](index task, index) {
      f(task * block, (std::min)(rows, (task + 1) * block));
    };
    executor.parallel_for((rows + block - 1) / block, work);
  }
};

}  // namespace heed::inline HEED_ABI::layers
