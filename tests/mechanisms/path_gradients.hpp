// PaTH with places for its gradients.
#pragma once

#include "gradient.hpp"
#include "heed/heed.hpp"
#include "mechanisms/path_calls.hpp"

namespace heed_test {

template <class T>
auto path_with_gradients(const path_parameters& p, gradient_memory<T>& to) {
  const heed::path<T> path = p.of<T>();
  return heed::with_grad(path, {to.like("w", path.w), to.like("beta", path.beta)});
}

}  // namespace heed_test
