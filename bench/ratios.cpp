// heed-ratios [--list] [NAME...]: prints `name value` lines, nothing else, on stdout.
#include "ratios/ratios.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

int main(int count, char** words) {
  std::vector<ratios::entry> list;
  ratios::add_softmax(list);
  ratios::add_fox(list);
  ratios::add_path(list);
  ratios::add_cope(list);
  ratios::add_mta(list);
  ratios::add_backward(list);
  ratios::add_decode(list);
  ratios::add_layer(list);
  std::vector<std::string> wanted(words + 1, words + count);
  if (wanted.size() == 1 && wanted.front() == "--list") {
    for (const ratios::entry& e : list) std::printf("%s\n", e.name.c_str());
    return 0;
  }
  for (const std::string& name : wanted) {
    const bool known = std::any_of(list.begin(), list.end(),
                                   [&](const ratios::entry& e) { return e.name == name; });
    if (!known) {
      std::fprintf(stderr, "heed-ratios: no figure named %s; --list names them\n", name.c_str());
      return 2;
    }
  }
  try {
    for (const ratios::entry& e : list) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), e.name) == wanted.end()) {
        continue;
      }
      const double value = e.measure();
      std::printf("%s %.3f\n", e.name.c_str(), value);
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
