// expect: heed: vector_view takes what is a row or a column by its type
#include "heed/eigen.hpp"

auto vector_of_matrix(Eigen::MatrixXf& a) {
  return heed::vector_view(a);
}
