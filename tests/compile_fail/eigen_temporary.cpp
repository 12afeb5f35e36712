// expect: heed: the view would outlive this temporary Eigen matrix
#include "heed/eigen.hpp"

auto view_of_temporary() {
  return heed::matrix_view(Eigen::MatrixXf(3, 4));
}
