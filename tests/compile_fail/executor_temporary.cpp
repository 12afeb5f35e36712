// expect: (cannot bind non-const lvalue|no matching (function|conversion)|no viable)
// The pool would be gone before its threads are asked for.
#include "heed/options.hpp"

heed::executor_ref dangling() {
  return heed::executor_ref(heed::thread_pool(2));
}
