#include "heed/parallel.hpp"

#include <chrono>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"

namespace heed_test {

using Catch::Matchers::Equals;
using heed::executor_ref;
using heed::index;
using heed::serial_executor;
using heed::task_ref;
using heed::thread_pool;

static_assert(heed::executor<serial_executor> && heed::executor<const serial_executor>);
static_assert(heed::executor<thread_pool> && heed::executor<executor_ref>);
static_assert(!heed::executor<int>);
struct no_workers {
  void parallel_for(index, task_ref) {}
};
static_assert(!heed::executor<no_workers>);
static_assert(!std::is_copy_constructible_v<thread_pool> &&
              !std::is_move_constructible_v<thread_pool>);
// An executor that would be gone before the call cannot be put into the options.
static_assert(!std::is_constructible_v<executor_ref, thread_pool>);
static_assert(std::is_trivially_copyable_v<executor_ref> && std::is_trivially_copyable_v<task_ref>);

namespace {

// Watches one parallel_for: every task once, workers in range and never doubled.
struct watcher {
  watcher(index tasks, index workers)
      : runs(static_cast<std::size_t>(tasks)), busy(static_cast<std::size_t>(workers)) {}

  void operator()(index task, index worker) {
    if (worker < 0 || worker >= static_cast<index>(busy.size())) {
      ++faults;
      return;
    }
    if (busy[static_cast<std::size_t>(worker)].exchange(true)) ++faults;
    ++runs[static_cast<std::size_t>(task)];
    if (task % 7 == 0) std::this_thread::yield();
    busy[static_cast<std::size_t>(worker)] = false;
  }
  bool right() const {
    for (const auto& n : runs)
      if (n != 1) return false;
    return faults == 0;
  }

  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<bool>> busy;
  std::atomic<int> faults{0};
};

// The contract of an executor, whatever it is.
template <class E>
void check_contract(E& e) {
  const index workers = e.workers();
  REQUIRE(workers >= 1);
  for (const index n : {0, 1, 2, 3, 16, 1000}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      watcher watch(n, workers);
      e.parallel_for(n, watch);
      REQUIRE(watch.right());
      REQUIRE(e.workers() == workers);
    }
  }
  watcher never(1, workers);
  e.parallel_for(-3, never);
  REQUIRE(never.runs[0] == 0);

  // The exception of a task comes out, and the executor works on.
  for (const index bad : {0, 5, 99}) {
    REQUIRE_THROWS_WITH(e.parallel_for(100,
                                       [&](index task, index) {
                                         if (task == bad) {
                                           throw std::runtime_error("task " + std::to_string(task));
                                         }
                                       }),
                        Equals("task " + std::to_string(bad)));
    watcher watch(50, workers);
    e.parallel_for(50, watch);
    REQUIRE(watch.right());
  }
  // All tasks throw: one exception comes out.
  REQUIRE_THROWS_AS(
      e.parallel_for(64, [](index task, index) { throw std::out_of_range(std::to_string(task)); }),
      std::out_of_range);
  // What is not derived from std::exception comes out too.
  REQUIRE_THROWS_AS(e.parallel_for(1, [](index, index) { throw 7; }), int);
}

}  // namespace

TEST_CASE("serial executor", "[parallel]") {
  serial_executor serial;
  check_contract(serial);
  REQUIRE(serial.workers() == 1);
  // In order, and nothing after a task that throws.
  std::vector<index> order;
  const auto thread = std::this_thread::get_id();
  REQUIRE_THROWS(serial.parallel_for(9, [&](index task, index worker) {
    order.push_back(task);
    if (task == 3 || worker != 0 || std::this_thread::get_id() != thread) throw 0;
  }));
  REQUIRE(order == std::vector<index>{0, 1, 2, 3});
}

TEST_CASE("thread pool", "[parallel]") {
  for (const index threads : {1, 2, 3, 7, 16}) {
    thread_pool pool(threads);
    REQUIRE(pool.workers() == threads);
    check_contract(pool);
  }
  REQUIRE(thread_pool().workers() >= 1);
  REQUIRE_THROWS_WITH(thread_pool(-1), Equals("heed: thread_pool: threads must be >= 0"));
  for (int n = 0; n < 50; ++n) thread_pool(4);  // made and gone without a task
}

TEST_CASE("thread pool uses its threads", "[parallel]") {
  // Three tasks that wait for one another end only if three threads run them.
  thread_pool pool(3);
  std::atomic<int> present{0};
  std::vector<std::thread::id> thread_of(3);
  pool.parallel_for(3, [&](index, index worker) {
    ++present;
    while (present < 3) std::this_thread::yield();
    thread_of[static_cast<std::size_t>(worker)] = std::this_thread::get_id();
  });
  REQUIRE(thread_of[0] == std::this_thread::get_id());
  REQUIRE(thread_of[1] != thread_of[2]);
  REQUIRE(thread_of[1] != std::thread::id());
  REQUIRE(thread_of[2] != std::thread::id());

  // The same thread keeps the same number.
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> moved{0};
    pool.parallel_for(10, [&](index, index worker) {
      if (thread_of[static_cast<std::size_t>(worker)] != std::this_thread::get_id()) ++moved;
    });
    REQUIRE(moved == 0);
  }
}

TEST_CASE("after an exception the remaining tasks are left out", "[parallel]") {
  thread_pool pool(3);
  std::atomic<bool> thrown{false};
  std::atomic<int> tasks{0};
  REQUIRE_THROWS_AS(pool.parallel_for(2000,
                                      [&](index task, index) {
                                        ++tasks;
                                        if (task == 0) {
                                          while (tasks < 3) std::this_thread::yield();
                                          thrown = true;
                                          throw std::runtime_error("stop");
                                        }
                                        while (!thrown) std::this_thread::yield();
                                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                      }),
                    std::runtime_error);
  REQUIRE(tasks < 1000);
}

TEST_CASE("a task of the pool may use the pool", "[parallel]") {
  for (const index threads : {1, 2, 5}) {
    thread_pool pool(threads);
    std::atomic<int> inner_tasks{0}, wrong{0};
    pool.parallel_for(20, [&](index, index outer) {
      const auto self = std::this_thread::get_id();
      pool.parallel_for(3, [&](index, index inner) {
        if (inner != outer || std::this_thread::get_id() != self) ++wrong;
        pool.parallel_for(2, [&](index, index innermost) {
          if (innermost != outer) ++wrong;
          ++inner_tasks;
        });
      });
    });
    REQUIRE(inner_tasks == 20 * 3 * 2);
    REQUIRE(wrong == 0);

    // An exception comes out of both.
    std::atomic<int> caught{0};
    REQUIRE_THROWS_WITH(pool.parallel_for(8,
                                          [&](index, index) {
                                            try {
                                              pool.parallel_for(2, [](index, index) {
                                                throw std::runtime_error("inner");
                                              });
                                            } catch (const std::runtime_error&) {
                                              ++caught;
                                              throw;
                                            }
                                          }),
                        Equals("inner"));
    REQUIRE(caught >= 1);
    watcher watch(30, threads);
    pool.parallel_for(30, watch);
    REQUIRE(watch.right());
  }
}

TEST_CASE("a task of one pool may use another", "[parallel]") {
  thread_pool outer(3), inner(2);
  std::atomic<int> tasks{0}, wrong{0};
  outer.parallel_for(12, [&](index, index) {
    watcher watch(9, inner.workers());
    inner.parallel_for(9, watch);
    if (!watch.right()) ++wrong;
    ++tasks;
  });
  REQUIRE(tasks == 12);
  REQUIRE(wrong == 0);
}

TEST_CASE("many threads share one pool", "[parallel]") {
  thread_pool pool(3);
  std::atomic<int> wrong{0}, exceptions{0};
  std::vector<std::atomic<bool>> busy(3);  // across callers: the workers of a pool are its own
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::atomic<int> tasks{0};
        const bool fails = (repeat + caller) % 10 == 0;
        try {
          pool.parallel_for(17, [&](index task, index worker) {
            if (busy[static_cast<std::size_t>(worker)].exchange(true)) ++wrong;
            ++tasks;
            busy[static_cast<std::size_t>(worker)] = false;
            if (fails && task == 16) throw std::runtime_error(std::to_string(caller));
          });
          if (fails || tasks != 17) ++wrong;
        } catch (const std::runtime_error& error) {
          // Never the exception of another caller.
          if (!fails || error.what() != std::to_string(caller)) ++wrong;
          ++exceptions;
        }
      }
    });
  }
  for (std::thread& t : callers) t.join();
  REQUIRE(wrong == 0);
  REQUIRE(exceptions == 8 * 5);
}

TEST_CASE("a steady parallel_for allocates nothing", "[parallel]") {
  thread_pool pool(4);
  executor_ref borrowed(pool);
  std::atomic<index> sum{0};
  const auto add = [&](index task, index) { sum += task; };
  pool.parallel_for(100, add);
  const long before = allocations;
  for (int repeat = 0; repeat < 100; ++repeat) {
    pool.parallel_for(100, add);
    borrowed.parallel_for(100, add);
    executor_ref().parallel_for(100, add);
  }
  REQUIRE(allocations == before);
  REQUIRE(sum == 301 * 4950);
  ::operator delete(::operator new(1000));
  REQUIRE(allocations == before + 1);  // the count counts
}

TEST_CASE("executor_ref passes calls on", "[parallel]") {
  executor_ref serial;
  REQUIRE(serial.workers() == 1);
  check_contract(serial);

  thread_pool pool(3);
  executor_ref borrowed(pool);
  REQUIRE(borrowed.workers() == 3);
  check_contract(borrowed);

  // The caller's own executor, const and with an int for workers().
  struct backwards {
    int workers() const { return 2; }
    void parallel_for(index n, task_ref f) const {
      for (index task = n; task-- > 0;) f(task, task % 2);
    }
  };
  const backwards own;
  executor_ref ref(own);
  REQUIRE(ref.workers() == 2);
  std::string order;
  ref.parallel_for(3, [&](index task, index worker) {
    order += std::to_string(task) + ":" + std::to_string(worker) + " ";
  });
  REQUIRE(order == "2:0 1:1 0:0 ");
  executor_ref copy = ref;
  REQUIRE(copy.workers() == 2);
}

TEST_CASE("task_ref calls the object it was made from", "[parallel]") {
  struct counter {
    index calls = 0;
    void operator()(index task, index worker) { calls += 10 * task + worker; }
  } count;
  const task_ref ref(count);
  ref(2, 1);
  ref(0, 3);
  REQUIRE(count.calls == 24);
  const auto constant = [&count](index, index) { ++count.calls; };
  const task_ref of_const(constant);
  of_const(0, 0);
  REQUIRE(count.calls == 25);
  // A copy refers to the object, not to the reference that was copied.
  task_ref copy(ref);
  copy(0, 1);
  REQUIRE(count.calls == 26);
}

#ifdef _OPENMP
TEST_CASE("OpenMP executor", "[parallel]") {
  static_assert(heed::executor<heed::openmp_executor>);
  for (const index threads : {0, 1, 2, 5}) {
    heed::openmp_executor openmp{threads};
    if (threads > 0) REQUIRE(openmp.workers() == threads);
    check_contract(openmp);
    executor_ref borrowed(openmp);
    check_contract(borrowed);
  }
}

TEST_CASE("OpenMP executor inside parallel regions", "[parallel]") {
  const heed::openmp_executor openmp{3};
  for (const int levels : {1, 2}) {
    omp_set_max_active_levels(levels);
    std::atomic<int> wrong{0}, tasks{0};
#pragma omp parallel num_threads(2)
    {
      watcher watch(40, openmp.workers());
      openmp.parallel_for(40, watch);
      if (!watch.right()) ++wrong;
      ++tasks;
    }
    openmp.parallel_for(4, [&](index, index) {
      watcher watch(10, openmp.workers());
      openmp.parallel_for(10, watch);
      if (!watch.right()) ++wrong;
      ++tasks;
    });
    REQUIRE(wrong == 0);
    REQUIRE(tasks == 2 + 4);
  }
  omp_set_max_active_levels(1);
}

TEST_CASE("thread pool called from OpenMP threads and the other way round", "[parallel]") {
  thread_pool pool(3);
  const heed::openmp_executor openmp{2};
  std::atomic<int> wrong{0}, tasks{0};
  openmp.parallel_for(10, [&](index, index) {
    watcher watch(20, pool.workers());
    pool.parallel_for(20, watch);
    if (!watch.right()) ++wrong;
    ++tasks;
  });
  pool.parallel_for(10, [&](index, index) {
    watcher watch(20, openmp.workers());
    openmp.parallel_for(20, watch);
    if (!watch.right()) ++wrong;
    ++tasks;
  });
  REQUIRE(wrong == 0);
  REQUIRE(tasks == 20);
}
#endif

}  // namespace heed_test
