#include "heed/workspace.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"

namespace heed_test {

using heed::index;
using heed::workspace;

static_assert(!std::is_copy_constructible_v<workspace> && !std::is_copy_assignable_v<workspace>);
static_assert(std::is_nothrow_move_constructible_v<workspace> &&
              std::is_nothrow_move_assignable_v<workspace>);

TEST_CASE("pieces are aligned, apart, and may be read 64 bytes beyond", "[workspace]") {
  workspace memory;
  REQUIRE(memory.capacity() == 0);
  std::mt19937 random(3);
  struct piece {
    unsigned char* data;
    std::size_t bytes;
  };
  std::vector<piece> pieces;
  for (int n = 0; n < 500; ++n) {
    const index count = static_cast<index>(random() % (n % 50 == 0 ? 100'000 : 700));
    auto* data = memory.take<double>(count);
    REQUIRE(reinterpret_cast<std::uintptr_t>(data) % 64 == 0);
    auto* bytes = reinterpret_cast<unsigned char*>(data);
    // Written with the 64 bytes behind it, so that a sanitizer sees them all.
    std::memset(bytes, 0xee, static_cast<std::size_t>(count) * 8 + 64);
    std::memset(bytes, n % 251, static_cast<std::size_t>(count) * 8);
    pieces.push_back({bytes, static_cast<std::size_t>(count) * 8});
  }
  for (int n = 0; n < 500; ++n) {
    const piece& p = pieces[static_cast<std::size_t>(n)];
    for (std::size_t byte = 0; byte < p.bytes; ++byte) {
      if (p.data[byte] != n % 251) REQUIRE(p.data[byte] == n % 251);
    }
  }
}

TEST_CASE("a sequence that has run once runs again without allocating", "[workspace]") {
  // Random sequences of takes, marks and rewinds of all sizes.
  for (unsigned seed = 0; seed < 200; ++seed) {
    workspace memory;
    const auto run = [&](std::vector<void*>& places) {
      std::mt19937 random(seed);
      std::array<workspace::mark_type, 20> marks{memory.mark()};
      std::size_t depth = 1;
      for (int n = 0; n < 100; ++n) {
        const unsigned what = random() % 8;
        if (what == 0 && depth < marks.size()) {
          marks[depth++] = memory.mark();
        } else if (what == 1 && depth > 1) {
          memory.rewind(marks[--depth]);
        } else {
          places.push_back(
              memory.take<float>(static_cast<index>(random() % (1u << random() % 17))));
        }
      }
      memory.reset();
    };
    std::vector<void*> first, second;
    first.reserve(200);
    second.reserve(200);
    run(first);
    const std::size_t held = memory.capacity();
    const long before = allocations;
    run(second);
    REQUIRE(allocations == before);
    REQUIRE(first == second);
    REQUIRE(memory.capacity() == held);
  }
}

TEST_CASE("sequences of another shape do not spoil the first one", "[workspace]") {
  workspace memory;
  const auto call = [&](index size) {
    const workspace::scope pieces(memory);
    memory.take<float>(size);
    memory.take<char>(1);
    memory.take<double>(size / 3);
  };
  for (const index size : {100, 100'000, 10, 30'000}) call(size);
  const long before = allocations;
  for (const index size : {100, 100'000, 10, 30'000}) call(size);
  REQUIRE(allocations == before);
  // The memory held stays near what the largest sequence needs.
  REQUIRE(memory.capacity() < 4 * 100'000 * (4 + 3));
}

TEST_CASE("rewind gives back, also after an exception", "[workspace]") {
  workspace memory;
  memory.take<float>(10);
  const auto mark = memory.mark();
  float* const first = memory.take<float>(100);
  memory.rewind(mark);
  REQUIRE(memory.take<float>(100) == first);
  memory.rewind(mark);
  try {
    const workspace::scope pieces(memory);
    memory.take<float>(100'000);
    throw 1;
  } catch (int) {
  }
  REQUIRE(memory.take<float>(100) == first);
}

TEST_CASE("reserve makes room for the takes that follow", "[workspace]") {
  workspace memory;
  const std::size_t bytes = workspace::bytes_for<float>(1000) + workspace::bytes_for<double>(3) +
                            workspace::bytes_for<char>(0) + workspace::bytes_for<char>(64);
  memory.reserve(bytes);
  REQUIRE(memory.capacity() == bytes);
  const long before = allocations;
  const auto takes = [&] {
    memory.take<float>(1000);
    memory.take<double>(3);
    memory.take<char>(0);
    memory.take<char>(64);
  };
  takes();
  REQUIRE(allocations == before);
  memory.take<char>(1);
  REQUIRE(allocations > before);  // a byte more than was reserved

  // Several blocks become one, and what is large enough stays.
  memory.reserve(bytes);
  REQUIRE(memory.capacity() == bytes);
  const long again = allocations;
  memory.reserve(bytes / 2);
  takes();
  REQUIRE(allocations == again);
  REQUIRE(memory.capacity() == bytes);
}

TEST_CASE("moves hand the memory over", "[workspace]") {
  workspace first;
  auto* const data = first.take<int>(1000);
  data[999] = 42;
  first.prepare_workers(2);
  first.worker(1).take<int>(5);
  const std::size_t held = first.capacity();

  workspace second(std::move(first));
  REQUIRE(second.capacity() == held);
  REQUIRE(first.capacity() == 0);
  REQUIRE(data[999] == 42);
  first.take<int>(7);  // a workspace that was moved from is an empty one

  first = std::move(second);
  REQUIRE(first.capacity() == held);
  REQUIRE(second.capacity() == 0);
  REQUIRE(first.take<int>(1) > data);  // behind the piece that is still taken
  workspace& self = first;
  first = std::move(self);
  REQUIRE(first.capacity() == held);
  REQUIRE(data[999] == 42);

  first.release();
  REQUIRE(first.capacity() == 0);
  first.take<int>(3)[2] = 1;
}

TEST_CASE("counts that no memory holds", "[workspace]") {
  workspace memory;
  memory.take<char>(1);
  const auto mark = memory.mark();
  REQUIRE_THROWS_AS(memory.take<float>(-1), std::bad_array_new_length);
  REQUIRE_THROWS_AS(memory.take<double>(PTRDIFF_MAX / 4), std::bad_array_new_length);
  REQUIRE_THROWS_AS(memory.take<char>(PTRDIFF_MAX), std::bad_array_new_length);
  bool thrown = false;
  out_of_memory = true;
  try {
    memory.take<char>(1 << 20);
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  out_of_memory = false;
  REQUIRE(thrown);
  REQUIRE(memory.mark().block == mark.block);
  REQUIRE(memory.mark().used == mark.used);
  REQUIRE(memory.take<char>(0) != memory.take<char>(0));
}

TEST_CASE("workers have arenas of their own", "[workspace]") {
  workspace memory;
  memory.prepare_workers(3);
  std::set<void*> places;
  for (index w = 0; w < 3; ++w) places.insert(memory.worker(w).take<float>(100));
  REQUIRE(places.size() == 3);
  workspace* const second = &memory.worker(1);
  memory.prepare_workers(2);
  memory.prepare_workers(5);
  REQUIRE(&memory.worker(1) == second);
  // What a failed task left behind is given back.
  REQUIRE(places.contains(memory.worker(1).take<float>(100)));
  // Workers do not make the calling thread's own blocks larger.
  memory.worker(0).take<char>(1 << 20);
  const std::size_t held = memory.capacity();
  memory.take<char>(1);
  REQUIRE(memory.capacity() < held + (1 << 20));
}

TEST_CASE("after levelling any worker can run any task", "[workspace]") {
  workspace memory;
  const auto task = [&](index w, index size) {
    const workspace::scope pieces(memory.worker(w));
    for (int n = 0; n < 5; ++n) memory.worker(w).take<float>(size);
  };
  memory.prepare_workers(4);
  task(0, 10);
  task(2, 50'000);
  task(2, 10);
  memory.level_workers();
  const long before = allocations;
  for (const index shift : {1, 2, 3}) {
    memory.prepare_workers(4);
    task((0 + shift) % 4, 10);
    task((2 + shift) % 4, 50'000);
    task((2 + shift) % 4, 10);
    memory.level_workers();
  }
  REQUIRE(allocations == before);

  workspace none;
  none.level_workers();
  none.prepare_workers(2);
  none.level_workers();
  REQUIRE(none.capacity() == 0);
}

}  // namespace heed_test
