#include "heed/eigen.hpp"

#include <algorithm>
#include <vector>

#include "catch.hpp"
#include "heed/overlap.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Equals;
using heed::index;
using heed::matrix_view;
using heed::shape;
using heed::tensor_view;
using heed::vector_view;

namespace {

// Every element of the view is the same object as Eigen's.
template <class X, class T>
bool same_elements(const X& x, const tensor_view<T, 2>& view) {
  if (view.extent(0) != x.rows() || view.extent(1) != x.cols()) return false;
  for (index r = 0; r < x.rows(); ++r)
    for (index c = 0; c < x.cols(); ++c)
      if (&view(r, c) != &x.coeffRef(r, c)) return false;
  return true;
}
template <class X, class T>
bool same_elements(const X& x, const tensor_view<T, 1>& view) {
  if (view.extent(0) != x.size()) return false;
  for (index n = 0; n < x.size(); ++n)
    if (&view(n) != (x.rows() > 1 ? &x.coeffRef(n, 0) : &x.coeffRef(0, n))) return false;
  return true;
}

template <class View>
using element = typename View::element_type;

using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using any_stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

Eigen::MatrixXd numbered(index rows, index cols) {
  Eigen::MatrixXd m(rows, cols);
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < cols; ++c) m(r, c) = static_cast<double>(100 * r + c);
  return m;
}

}  // namespace

TEST_CASE("matrices, arrays and fixed sizes in both storage orders", "[eigen]") {
  Eigen::MatrixXd columns = numbered(5, 3);
  row_major rows = columns;
  Eigen::ArrayXXd array = columns.array();
  Eigen::Matrix<float, 3, 4> fixed = Eigen::Matrix<float, 3, 4>::Random();
  REQUIRE(same_elements(columns, matrix_view(columns)));
  REQUIRE(same_elements(rows, matrix_view(rows)));
  REQUIRE(same_elements(array, matrix_view(array)));
  REQUIRE(same_elements(fixed, matrix_view(fixed)));
  REQUIRE(matrix_view(columns).strides() == shape<2>{1, 5});
  REQUIRE(matrix_view(rows).strides() == shape<2>{3, 1});

  static_assert(std::is_same_v<decltype(matrix_view(columns)), tensor_view<double, 2>>);
  static_assert(std::is_same_v<decltype(matrix_view(fixed)), tensor_view<float, 2>>);
  static_assert(
      std::is_same_v<decltype(matrix_view(std::as_const(rows))), tensor_view<const double, 2>>);
  matrix_view(columns)(4, 2) = -1;
  REQUIRE(columns(4, 2) == -1);
}

TEST_CASE("blocks, maps, references and transposes", "[eigen]") {
  Eigen::MatrixXd m = numbered(6, 8);
  row_major r = m;
  const Eigen::MatrixXd& constant = m;
  REQUIRE(same_elements(m.block(1, 2, 3, 4), matrix_view(m.block(1, 2, 3, 4))));
  REQUIRE(same_elements(r.block(1, 2, 3, 4), matrix_view(r.block(1, 2, 3, 4))));
  REQUIRE(same_elements(m.topRows(2).rightCols(3), matrix_view(m.topRows(2).rightCols(3))));
  REQUIRE(same_elements(m.transpose(), matrix_view(m.transpose())));
  REQUIRE(
      same_elements(r.block(1, 1, 2, 5).transpose(), matrix_view(r.block(1, 1, 2, 5).transpose())));
  static_assert(std::is_same_v<decltype(matrix_view(m.leftCols(2))), tensor_view<double, 2>>);
  static_assert(
      std::is_same_v<decltype(matrix_view(constant.leftCols(2))), tensor_view<const double, 2>>);

  std::vector<double> data(400);
  Eigen::Map<Eigen::MatrixXd, 0, any_stride> strided(data.data(), 4, 5, any_stride(40, 3));
  Eigen::Map<row_major, 0, any_stride> strided_rows(data.data(), 4, 5, any_stride(40, 3));
  REQUIRE(same_elements(strided, matrix_view(strided)));
  REQUIRE(same_elements(strided_rows, matrix_view(strided_rows)));
  REQUIRE(matrix_view(strided).strides() == shape<2>{3, 40});
  REQUIRE(matrix_view(strided_rows).strides() == shape<2>{40, 3});
  REQUIRE(same_elements(strided.block(1, 1, 2, 3), matrix_view(strided.block(1, 1, 2, 3))));
  const Eigen::Map<const Eigen::MatrixXd> read(data.data(), 4, 5);
  REQUIRE(same_elements(read, matrix_view(read)));
  static_assert(std::is_same_v<decltype(matrix_view(read)), tensor_view<const double, 2>>);
  static_assert(std::is_same_v<decltype(matrix_view(Eigen::Map<Eigen::MatrixXd>(nullptr, 0, 0))),
                               tensor_view<double, 2>>);

  const auto through_ref = [](Eigen::Ref<Eigen::MatrixXd> ref, double* expected) {
    return matrix_view(ref).data() == expected && same_elements(ref, matrix_view(ref));
  };
  REQUIRE(through_ref(m.middleCols(2, 3), &m(0, 2)));
  const auto through_const_ref = [](const Eigen::Ref<const Eigen::MatrixXd>& ref,
                                    const double* expected) {
    return matrix_view(ref).data() == expected && same_elements(ref, matrix_view(ref));
  };
  REQUIRE(through_const_ref(m.middleCols(2, 3), &m(0, 2)));

  // A stride of 0 repeats; a negative one is refused as everywhere.
  Eigen::Map<row_major, 0, any_stride> repeated(data.data(), 7, 5, any_stride(0, 1));
  REQUIRE(matrix_view(repeated).strides() == shape<2>{0, 1});
}

TEST_CASE("sizes of 0 and 1", "[eigen]") {
  Eigen::MatrixXf none(0, 4), also(4, 0), nothing, one(1, 1), row(1, 5), column(5, 1);
  REQUIRE(matrix_view(none).extents() == shape<2>{0, 4});
  REQUIRE(matrix_view(also).extents() == shape<2>{4, 0});
  REQUIRE(matrix_view(nothing).empty());
  REQUIRE(same_elements(one, matrix_view(one)));
  REQUIRE(same_elements(row, matrix_view(row)));
  REQUIRE(same_elements(column, matrix_view(column)));
  Eigen::VectorXf empty(0);
  REQUIRE(vector_view(empty).empty());
}

TEST_CASE("rows, columns and diagonals are vectors", "[eigen]") {
  Eigen::MatrixXd m = numbered(6, 8);
  row_major r = m;
  Eigen::VectorXd v = Eigen::VectorXd::LinSpaced(9, 0, 8);
  Eigen::RowVectorXf w = Eigen::RowVectorXf::LinSpaced(7, 0, 6);
  Eigen::ArrayXd a = v.array();
  REQUIRE(same_elements(v, vector_view(v)));
  REQUIRE(same_elements(w, vector_view(w)));
  REQUIRE(same_elements(a, vector_view(a)));
  REQUIRE(same_elements(m.row(2), vector_view(m.row(2))));
  REQUIRE(same_elements(m.col(2), vector_view(m.col(2))));
  REQUIRE(same_elements(r.row(2), vector_view(r.row(2))));
  REQUIRE(same_elements(r.col(2), vector_view(r.col(2))));
  REQUIRE(vector_view(m.row(2)).stride(0) == 6);
  REQUIRE(vector_view(r.col(2)).stride(0) == 8);
  REQUIRE(same_elements(v.segment(2, 4), vector_view(v.segment(2, 4))));
  REQUIRE(same_elements(v.transpose(), vector_view(v.transpose())));
  REQUIRE(same_elements(m.diagonal(), vector_view(m.diagonal())));
  REQUIRE(same_elements(m.diagonal(2), vector_view(m.diagonal(2))));
  Eigen::Map<Eigen::MatrixXd, 0, any_stride> spread(m.data(), 3, 3, any_stride(12, 2));
  REQUIRE(vector_view(spread.diagonal()).stride(0) == 14);
  REQUIRE(vector_view(spread.diagonal())(2) == spread(2, 2));
  Eigen::Matrix<double, 1, 1> single;
  REQUIRE(same_elements(single, vector_view(single)));
  static_assert(
      std::is_same_v<decltype(vector_view(std::as_const(v))), tensor_view<const double, 1>>);
  static_assert(std::is_same_v<decltype(vector_view(w)), tensor_view<float, 1>>);

  Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<>> backwards(v.data() + 8, 9,
                                                                 Eigen::InnerStride<>(-1));
  REQUIRE_THROWS_WITH(vector_view(backwards), ContainsSubstring("axis 0 has negative stride -1"));
}

TEST_CASE("heads side by side in columns", "[eigen]") {
  constexpr index B = 2, T = 3, H = 4, D = 5;
  Eigen::MatrixXd m = numbered(B * T, H * D);
  row_major r = m;
  const auto check = [&](auto& matrix) {
    const auto view = heed::heads_in_columns(matrix, H, B);
    REQUIRE(view.extents() == shape<4>{B, T, H, D});
    for (index b = 0; b < B; ++b)
      for (index t = 0; t < T; ++t)
        for (index h = 0; h < H; ++h)
          for (index d = 0; d < D; ++d) {
            REQUIRE(&view(b, t, h, d) == &matrix.coeffRef(b * T + t, h * D + d));
          }
    REQUIRE(!heed::overlaps_itself(view));
  };
  check(m);
  check(r);
  REQUIRE(heed::heads_in_columns(m, H).extents() == shape<4>{1, B * T, H, D});
  // q, k and v of one wide projection.
  Eigen::MatrixXf fused(T, 3 * H * D);
  const auto q = heed::heads_in_columns(fused.leftCols(H * D), H);
  const auto k = heed::heads_in_columns(fused.middleCols(H * D, H * D), H);
  REQUIRE(q.extents() == shape<4>{1, T, H, D});
  REQUIRE(&k(0, 2, 3, 4) == &fused(2, H * D + 3 * D + 4));
  REQUIRE(!heed::views_overlap(q, k));
  static_assert(std::is_same_v<decltype(heed::heads_in_columns(std::as_const(m), 2)),
                               tensor_view<const double, 4>>);

  REQUIRE_THROWS_WITH(heed::heads_in_columns(m, 3),
                      Equals("heed: heads_in_columns: axis 1 (columns) is 20, expected a multiple "
                             "of heads = 3"));
  REQUIRE_THROWS_WITH(heed::heads_in_columns(m, 4, 4),
                      Equals("heed: heads_in_columns: axis 0 (rows) is 6, expected a multiple of "
                             "batch = 4"));
  REQUIRE_THROWS_WITH(heed::heads_in_columns(m, 0),
                      Equals("heed: heads_in_columns: heads is 0, expected at least 1"));
  REQUIRE_THROWS_AS(heed::heads_in_columns(m, 4, -1), heed::shape_error);
}

TEST_CASE("heads in rows and in blocks of rows", "[eigen]") {
  constexpr index B = 2, T = 3, H = 4, D = 5;
  Eigen::MatrixXd m = numbered(B * T * H, D);
  row_major r = m;
  const auto check = [&](auto& matrix) {
    const auto rows = heed::heads_in_rows(matrix, H, B);
    const auto blocks = heed::heads_in_blocks(matrix, H, B);
    REQUIRE(rows.extents() == shape<4>{B, T, H, D});
    REQUIRE(blocks.extents() == shape<4>{B, T, H, D});
    for (index b = 0; b < B; ++b)
      for (index t = 0; t < T; ++t)
        for (index h = 0; h < H; ++h)
          for (index d = 0; d < D; ++d) {
            REQUIRE(&rows(b, t, h, d) == &matrix.coeffRef((b * T + t) * H + h, d));
            REQUIRE(&blocks(b, t, h, d) == &matrix.coeffRef((b * H + h) * T + t, d));
          }
  };
  check(m);
  check(r);
  REQUIRE(heed::heads_in_rows(m, 8).extents() == shape<4>{1, 3, 8, D});
  REQUIRE(heed::heads_in_blocks(m, 8).extents() == shape<4>{1, 3, 8, D});
  REQUIRE_THROWS_WITH(
      heed::heads_in_rows(m, 5),
      Equals("heed: heads_in_rows: axis 0 (rows) is 24, expected a multiple of heads = 5"));
  REQUIRE_THROWS_WITH(heed::heads_in_blocks(m, 4, 4),
                      Equals("heed: heads_in_blocks: axis 0 (rows) / heads is 6, expected a "
                             "multiple of batch = 4"));
  REQUIRE_THROWS_AS(heed::heads_in_rows(m, -4), heed::shape_error);
  Eigen::MatrixXd none(0, D);
  REQUIRE(heed::heads_in_rows(none, 4, 2).extents() == shape<4>{2, 0, 4, D});
}

TEST_CASE("views as Eigen maps", "[eigen]") {
  std::vector<float> data(1000);
  for (std::size_t n = 0; n < data.size(); ++n) data[n] = static_cast<float>(n);
  const std::vector<float> original = data;
  const shape<2> extents{4, 6};
  for (const shape<2> strides : {shape<2>{6, 1}, {1, 4}, {50, 7}, {0, 1}, {1, 0}, {0, 0}}) {
    const tensor_view<float, 2> view(data, extents, strides);
    auto map = heed::eigen_map(view);
    const auto read = heed::eigen_map(tensor_view<const float, 2>(view));
    REQUIRE((map.rows() == 4 && map.cols() == 6));
    for (index r = 0; r < 4; ++r)
      for (index c = 0; c < 6; ++c) {
        REQUIRE(&map.coeffRef(r, c) == &view(r, c));
        REQUIRE(read(r, c) == view(r, c));
      }
    // Arithmetic of Eigen's on the map, not only element access.
    float sum = 0;
    for (index r = 0; r < 4; ++r)
      for (index c = 0; c < 6; ++c) sum += view(r, c);
    REQUIRE(read.sum() == Catch::Approx(sum));
    REQUIRE(same_elements(map, matrix_view(map)));
  }
  const tensor_view<float, 2> spread(data, extents, {50, 7});
  heed::eigen_map(spread).setConstant(-1);
  REQUIRE(std::count(data.begin(), data.end(), -1.f) == 24);
  data = original;

  const tensor_view<float, 1> line(data, {5}, {3});
  auto vector = heed::eigen_map(line);
  REQUIRE(vector.size() == 5);
  REQUIRE(vector.sum() == 0 + 3 + 6 + 9 + 12);
  vector.array() += 1;
  REQUIRE((line(4) == 13 && data[13] == 13 && data[11] == 11));
  REQUIRE(heed::eigen_map(tensor_view<const float, 1>(line)).norm() ==
          Catch::Approx(vector.norm()));
  REQUIRE(heed::eigen_map(tensor_view<float, 2>(data, {0, 3})).size() == 0);
  REQUIRE(heed::eigen_map(tensor_view<float, 1>()).size() == 0);
  static_assert(
      !std::is_assignable_v<decltype(heed::eigen_map(tensor_view<const float, 2>()).coeffRef(0, 0)),
                            float>);
}

TEST_CASE("one head as an Eigen map", "[eigen]") {
  std::vector<double> data(2 * 3 * 4 * 5);
  const tensor_view<double, 4> out(data, {2, 3, 4, 5});
  for (index b = 0; b < 2; ++b)
    for (index h = 0; h < 4; ++h) {
      auto head = heed::head_map(out, b, h);
      REQUIRE((head.rows() == 3 && head.cols() == 5));
      for (index t = 0; t < 3; ++t)
        for (index d = 0; d < 5; ++d) REQUIRE(&head.coeffRef(t, d) == &out(b, t, h, d));
    }
  REQUIRE_THROWS_WITH(heed::head_map(out, 2, 0),
                      Equals("heed: head_map: batch is 2, axis 0 (batch) has 2"));
  REQUIRE_THROWS_WITH(heed::head_map(out, 0, -1),
                      Equals("heed: head_map: head is -1, axis 2 (heads) has 4"));

  // There and back: the matrix that the heads came from.
  Eigen::MatrixXd m = numbered(6, 8);
  const auto view = heed::heads_in_columns(m, 2, 2);
  REQUIRE(heed::head_map(view, 1, 1) == m.block(3, 4, 3, 4));
}

}  // namespace heed_test
