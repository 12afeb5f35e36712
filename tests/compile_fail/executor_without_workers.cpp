// expect: e\.workers\(\)[^\n]*(is|would be) invalid
#include "heed/parallel.hpp"

struct no_executor {
  void parallel_for(heed::index, heed::task_ref) {}
};

heed::executor_ref make(no_executor& e) {
  return heed::executor_ref(e);
}
