#include <heed/heed.hpp>

#include <string>
#include <vector>

int main() {
  const std::string version = std::to_string(HEED_VERSION_MAJOR) + "." +
                              std::to_string(HEED_VERSION_MINOR) + "." +
                              std::to_string(HEED_VERSION_PATCH);
  if (version != EXPECTED_VERSION) return 1;

  // Threads come with the target.
  std::vector<int> hits(100, 0);
  heed::thread_pool pool(2);
  const auto hit = [&](heed::index task, heed::index) { ++hits[static_cast<std::size_t>(task)]; };
  pool.parallel_for(100, hit);
  return hits == std::vector<int>(100, 1) ? 0 : 2;
}
