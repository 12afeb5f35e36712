// What must hold for any bytes given to a reader of files: they are refused with one short
// sentence, or everything that they promise is there. The targets tell whether the bytes were
// accepted, and throw std::logic_error when something does not hold.
#pragma once

#include <stdexcept>
#include <string>

namespace heed_test {

inline void must(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

inline bool refused_in_a_sentence(const std::string& message) {
  must(message.starts_with("x: "), "a message begins with the name of the file");
  must(message.size() < 600, "a message is short");
  for (const char c : message) must(c >= ' ' && c <= '~', "a message is one line of plain text");
  return false;
}

}  // namespace heed_test
