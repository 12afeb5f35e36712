// expect: heed: an Eigen expression has no elements in memory to view
#include "heed/eigen.hpp"

auto view_of_sum(const Eigen::MatrixXf& a) {
  return heed::matrix_view(a + a);
}
