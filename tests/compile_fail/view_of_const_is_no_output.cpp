// expect: (could not convert|no viable conversion)
// A const view must not silently become a mutable one.
#include "heed/tensor.hpp"

heed::tensor_view<float, 1> mutable_view(heed::tensor_view<const float, 1> view) {
  return view;
}
