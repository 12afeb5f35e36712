#include "guarded.hpp"

#include <sys/wait.h>

#include <csignal>

#include "catch.hpp"

namespace heed_test {

using heed::index;
using heed::shape;

namespace {

// Whether a process that does this dies of it.
template <class F>
bool dies(F&& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int signal : {SIGSEGV, SIGBUS}) std::signal(signal, SIG_DFL);
    if (::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(0);  // a sanitizer's report
    act();
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return false;
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

template <class T>
void touch(T* element) {
  volatile T* here = element;
  *here = *here;
}

}  // namespace

TEMPLATE_TEST_CASE("one element beyond a guarded tensor is out of bounds", "[guarded]", float,
                   double) {
  const shape<3> extents{2, 3, 5};
  for (const shape<3>& strides : {shape<3>{15, 5, 1}, {3000, 700, 2}, {0, 11, 2}, {1, 2, 6}}) {
    guarded_tensor<TestType, 3> after(extents, strides),
        before(extents, strides, guard::before_first);
    for (auto* tensor : {&after, &before}) {
      REQUIRE(tensor->view().extents() == extents);
      REQUIRE(tensor->view().strides() == strides);
      tensor->fill([](index a, index b, index c) { return 100 * a + 10 * b + c; });
      REQUIRE(tensor->read()(1, 2, 4) == 124);
      REQUIRE(tensor->gaps_intact());
    }
    TestType* const last = after.view().pointer(1, 2, 4);
    TestType* const first = before.view().pointer(0, 0, 0);
    REQUIRE(!dies([&] { touch(last); }));
    REQUIRE(dies([&] { touch(last + 1); }));
    REQUIRE(!dies([&] { touch(first); }));
    REQUIRE(dies([&] { touch(first - 1); }));
    // A vector of eight that begins inside and ends outside.
    REQUIRE(dies([&] {
      for (int lane = 0; lane < 8; ++lane) touch(last - 3 + lane);
    }));
  }
}

TEST_CASE("row-major guarded tensors, and ones without elements", "[guarded]") {
  guarded_tensor<float, 2> tensor({3, 4});
  REQUIRE(tensor.view().strides() == shape<2>{4, 1});
  REQUIRE(dies([&] { touch(tensor.view().data() + 12); }));

  guarded_tensor<float, 2> none({0, 4});
  REQUIRE(none.view().empty());
  REQUIRE(dies([&] { touch(none.view().data()); }));
  guarded_tensor<float, 2> none_before({0, 4}, guard::before_first);
  REQUIRE(dies([&] { touch(none_before.view().data() - 1); }));

  // Exactly a page, and more than one.
  guarded_tensor<double, 1> page({512}), pages({5000});
  REQUIRE(dies([&] { touch(page.view().data() + 512); }));
  REQUIRE(dies([&] { touch(page.view().data() - 1); }));
  REQUIRE(dies([&] { touch(pages.view().data() + 5000); }));

  const float* const data = tensor.view().data();
  const guarded_tensor<float, 2> moved(std::move(tensor));
  REQUIRE(moved.view().data() == data);
  REQUIRE(moved.view()(2, 3) != moved.view()(2, 3));  // starts as NaN
}

TEST_CASE("a write between the elements is noticed", "[guarded]") {
  guarded_tensor<float, 2> tensor({4, 3}, {10, 2});
  tensor.fill([](index, index) { return 1; });
  REQUIRE(tensor.gaps_intact());
  float* const gap = tensor.view().data() + 1;
  const float nan = *gap;
  for (const float value : {0.f, -nan}) {
    *gap = value;
    REQUIRE(!tensor.gaps_intact());
  }
  *gap = nan;
  REQUIRE(tensor.gaps_intact());
  // Before the first element, in the same page.
  tensor.view().data()[-1] = 0;
  REQUIRE(!tensor.gaps_intact());
}

}  // namespace heed_test
