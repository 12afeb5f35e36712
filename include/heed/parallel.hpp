// Executors: who runs the tasks of a call. The caller chooses one per call; heed has no globals.
#pragma once

#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "heed/config.hpp"

namespace heed::inline HEED_ABI {

// A borrowed callable void(index task, index worker). Never owns, never allocates. It may be made
// from a temporary in the argument list of parallel_for, and is not to be kept beyond that call.
class task_ref {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, task_ref> &&
           std::is_object_v<std::remove_reference_t<F>> &&
           std::is_invocable_v<std::remove_reference_t<F>&, index, index>) task_ref(F&& f)
  noexcept
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, index task, index worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(task, worker);
        }) {}
  void operator()(index task, index worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, index, index);
};

// What an executor offers: workers() >= 1, and parallel_for(n, f), which calls f(task, worker) once
// for every task in [0, n), with worker in [0, workers()), and returns when all are done. Within
// one parallel_for no two calls with the same worker run at the same time: scratch memory of a
// call belongs to the worker. An exception of a task leaves parallel_for once no task is running;
// tasks that have not started by then may be left out.
//
// heed asks workers() once per public call, on the calling thread, and makes scratch for so many;
// until that call returns, parallel_for on that thread must not name more workers.
template <class E>
concept executor = requires(E& e, index n, task_ref f) {
  { e.workers() } -> std::convertible_to<index>;
  e.parallel_for(n, f);
};

// Runs everything on the calling thread. The default.
struct serial_executor {
  static constexpr index workers() noexcept { return 1; }
  static void parallel_for(index n, task_ref f) {
    for (index task = 0; task < n; ++task) f(task, 0);
  }
};

// A borrowed executor; the options of a call hold one. The executor must outlive the call.
class executor_ref {
 public:
  executor_ref() noexcept : executor_ref(serial()) {}
  template <class E>
  requires(executor<E> && !std::is_same_v<std::remove_cv_t<E>, executor_ref>) executor_ref(E& e)
  noexcept
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(e)))),
        workers_(
            [](void* object) { return static_cast<index>(static_cast<E*>(object)->workers()); }),
        run_([](void* object, index n, task_ref f) {
          static_cast<E*>(object)->parallel_for(n, f);
        }) {}

  index workers() const { return workers_(object_); }
  void parallel_for(index n, task_ref f) const {
    if (n > 0) run_(object_, n, f);
  }

 private:
  static serial_executor& serial() noexcept {
    static serial_executor instance;  // stateless
    return instance;
  }
  void* object_;
  index (*workers_)(void*);
  void (*run_)(void*, index, task_ref);
};

// A fixed set of threads that sleep between calls. The calling thread works as worker 0.
//
// Many threads may share a pool: one parallel_for runs at a time, the others wait their turn. A
// task may itself use the pool: that inner parallel_for runs on the task's own thread alone,
// under that thread's worker number, since all other threads are busy with the outer one. (A task
// must not wait for another thread that uses the same pool.) The first exception of a task is
// rethrown; tasks not yet started are then left out, and the pool stays usable.
//
// parallel_for allocates nothing.
class thread_pool {
 public:
  // threads >= 1, the caller included; 0 means one per hardware thread. Throws
  // std::invalid_argument for a negative number, std::system_error when a thread cannot start.
  explicit thread_pool(index threads = 0) {
    if (threads < 0) throw std::invalid_argument("heed: thread_pool: threads must be >= 0");
    if (threads == 0) threads = static_cast<index>(std::thread::hardware_concurrency());
    if (threads <= 1) return;
    threads_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (index w = 1; w < threads; ++w) threads_.emplace_back([this, w] { serve(w); });
    } catch (...) {
      stop();
      throw;
    }
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() { stop(); }

  index workers() const noexcept { return static_cast<index>(threads_.size()) + 1; }

  void parallel_for(index n, task_ref f) {
    if (n <= 0) return;
    if (const index worker = current_worker(); worker >= 0) {
      for (index task = 0; task < n; ++task) f(task, worker);
      return;
    }
    const std::lock_guard one_caller(callers_);
    caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    if (n == 1 || threads_.empty()) {
      run_alone(n, f);
    } else {
      run_shared(n, f);
    }
    caller_.store(std::thread::id(), std::memory_order_relaxed);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  // The number under which this thread is running a task of this pool, or -1. Only the thread
  // itself can store its own id in caller_, so a relaxed read cannot mistake it.
  index current_worker() const noexcept {
    const std::thread::id self = std::this_thread::get_id();
    if (caller_.load(std::memory_order_relaxed) == self) return 0;
    for (std::size_t n = 0; n < threads_.size(); ++n) {
      if (threads_[n].get_id() == self) return static_cast<index>(n) + 1;
    }
    return -1;
  }

  void run_alone(index n, task_ref f) {
    try {
      for (index task = 0; task < n; ++task) f(task, 0);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void run_shared(index n, task_ref f) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &f;
      count_ = n;
      next_.store(0, std::memory_order_relaxed);
      ++generation_;
    }
    wake_.notify_all();
    drain(f, n, 0);
    std::unique_lock lock(mutex_);
    job_ = nullptr;  // a thread that wakes from here on finds nothing to do and is not waited for
    done_.wait(lock, [this] { return busy_ == 0; });
  }

  // The job is passed by the caller's reference: job_ may be cleared while the last task begins.
  void drain(const task_ref& job, index count, index worker) {
    try {
      for (index task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < count;) {
        job(task, worker);
      }
    } catch (...) {
      next_.store(count, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void serve(index worker) {
    std::unique_lock lock(mutex_);
    for (std::uint64_t seen = 0;;) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      if (job_ == nullptr) continue;
      const task_ref& job = *job_;
      const index count = count_;
      ++busy_;
      lock.unlock();
      drain(job, count, worker);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  std::mutex callers_;                   // held by the thread whose parallel_for runs
  std::atomic<std::thread::id> caller_;  // that thread
  std::mutex mutex_;                     // guards all below but next_
  std::condition_variable wake_, done_;
  const task_ref* job_ = nullptr;
  index count_ = 0;
  index busy_ = 0;  // pool threads inside drain
  std::uint64_t generation_ = 0;
  std::atomic<index> next_{0};
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

#ifdef _OPENMP
// OpenMP's threads; exists where the translation unit is built with OpenMP. Inside a parallel
// region of the caller it runs on the calling thread alone unless nesting is enabled there. Callers
// on different threads do not wait for each other: each gets a team of its own.
struct openmp_executor {
  index threads = 0;  // 0 or less: as many as OpenMP would use

  index workers() const {
    return threads > 0 ? threads : static_cast<index>(omp_get_max_threads());
  }
  void parallel_for(index n, task_ref f) const {
    if (n <= 0) return;
    const int team = static_cast<int>(workers());
    std::exception_ptr error;
    std::atomic<bool> failed{false};
#pragma omp parallel num_threads(team) if (n > 1)
    {
      const index worker = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
      for (index task = 0; task < n; ++task) {
        if (failed.load(std::memory_order_relaxed)) continue;
        try {
          f(task, worker);
        } catch (...) {
#pragma omp critical(heed_openmp_executor)
          {
            if (!error) error = std::current_exception();
            failed.store(true, std::memory_order_relaxed);
          }
        }
      }
    }
    if (error) std::rethrow_exception(error);
  }
};
#endif

}  // namespace heed::inline HEED_ABI
