// expect: heed: a tensor_view has 1 to 4 axes
#include "heed/tensor.hpp"

heed::tensor_view<float, 5> view;
