// expect: heed: an Eigen matrix, array, map or block is expected
#include <vector>

#include "heed/eigen.hpp"

auto view_of_vector(std::vector<float>& a) {
  return heed::matrix_view(a);
}
