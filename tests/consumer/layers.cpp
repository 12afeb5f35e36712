#include <Eigen/Core>
#include <heed/heed.hpp>
#include <nlohmann/json.hpp>

int main() {
  const Eigen::MatrixXf values = Eigen::MatrixXf::Ones(2, 3);
  const nlohmann::json extents = {values.rows(), values.cols()};
  const heed::tensor_view<const float, 2> view(values.data(), {extents[0], extents[1]});
  return view.size() == 6 ? 0 : 1;
}
