// Executors: who runs the tasks of a call. The caller chooses one per call; heed has no globals.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <condition_variable>
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

// A borrowed callable void(index task, index worker). Never owns, never allocates.
class task_ref {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, task_ref>) task_ref(F& f)
  noexcept
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, index task, index worker) {
          (*static_cast<F*>(object))(task, worker);
        }) {}
  void operator()(index task, index worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, index, index);
};

// What an executor offers: workers() >= 1, and parallel_for(n, f), which calls f(task, worker) once
// for every task in [0, n), with worker in [0, workers()), never two calls with one worker at the
// same time, and returns when all are done.
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
      : object_(std::addressof(e)),
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

// A fixed set of threads that sleep between calls. The calling thread works as worker 0. One
// parallel_for at a time; a second caller waits. The first exception of a task is rethrown.
class thread_pool {
 public:
  // threads >= 1, the caller included; 0 means one per hardware thread.
  explicit thread_pool(index threads = 0) {
    if (threads < 0) throw std::invalid_argument("heed: thread_pool: threads must be >= 0");
    if (threads == 0)
      threads = std::max<index>(1, static_cast<index>(std::thread::hardware_concurrency()));
    for (index w = 1; w < threads; ++w) threads_.emplace_back([this, w] { serve(w); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  index workers() const noexcept { return static_cast<index>(threads_.size()) + 1; }

  void parallel_for(index n, task_ref f) {
    const std::lock_guard one_caller(callers_);
    {
      const std::lock_guard lock(mutex_);
      job_ = &f;
      count_ = n;
      next_.store(0, std::memory_order_relaxed);
      busy_ = static_cast<index>(threads_.size());
      error_ = nullptr;
      ++generation_;
    }
    wake_.notify_all();
    drain(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    job_ = nullptr;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void drain(index worker) {
    try {
      for (index task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
        (*job_)(task, worker);
      }
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  void serve(index worker) {
    std::unique_lock lock(mutex_);
    for (index seen = 0;;) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      lock.unlock();
      drain(worker);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex callers_, mutex_;
  std::condition_variable wake_, done_;
  const task_ref* job_ = nullptr;
  index count_ = 0, busy_ = 0, generation_ = 0;
  std::atomic<index> next_{0};
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

#ifdef _OPENMP
// OpenMP's threads; exists where the translation unit is built with OpenMP. Inside a parallel
// region of the caller it runs on the calling thread alone unless nesting is enabled there.
struct openmp_executor {
  index threads = 0;  // 0: as many as OpenMP would use

  index workers() const {
    return threads > 0 ? threads : static_cast<index>(omp_get_max_threads());
  }
  void parallel_for(index n, task_ref f) const {
    std::exception_ptr error;
#pragma omp parallel num_threads(static_cast <int>(workers()))
    {
      const index worker = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
      for (index task = 0; task < n; ++task) {
        try {
          f(task, worker);
        } catch (...) {
#pragma omp critical(heed_openmp_executor)
          if (!error) error = std::current_exception();
        }
      }
    }
    if (error) std::rethrow_exception(error);
  }
};
#endif

}  // namespace heed::inline HEED_ABI
