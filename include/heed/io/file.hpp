// What the file formats share: a file's bytes, mapped or read, and a file that is replaced whole or
// not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define HEED_HAS_MMAP 1
#endif

#include "heed/config.hpp"

namespace heed::inline HEED_ABI::io {

// A word from a file as it may stand in a message: at most so many bytes, each of them visible.
inline std::string printable(std::string_view word, std::size_t most = 64) {
  std::string text(word.substr(0, most));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return word.size() > most ? text + "..." : text;
}

// The bytes of a file, which must not change or shrink while they are mapped. Moving keeps their
// address.
class file_bytes {
 public:
  file_bytes() = default;
  file_bytes(file_bytes&& other) noexcept
      : copy_(std::move(other.copy_)),
        mapped_(std::exchange(other.mapped_, {})),
        is_mapped_(std::exchange(other.is_mapped_, false)) {}
  file_bytes& operator=(file_bytes&& other) noexcept {
    std::swap(copy_, other.copy_);
    std::swap(mapped_, other.mapped_);
    std::swap(is_mapped_, other.is_mapped_);
    return *this;
  }
  ~file_bytes() {
#if defined(HEED_HAS_MMAP)
    if (is_mapped_) ::munmap(const_cast<std::byte*>(mapped_.data()), mapped_.size());
#endif
  }

  // Throws Error, with one sentence that begins with the path, when there is no such regular file
  // or it cannot be read.
  template <class Error>
  static file_bytes read(const std::filesystem::path& path) {
    const std::string name = path.string();
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) throw Error(name + ": no such file");
    if (!std::filesystem::is_regular_file(status)) throw Error(name + ": not a regular file");
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const std::streamoff size = file ? std::streamoff(file.tellg()) : -1;
    if (size < 0) throw Error(name + ": cannot be opened");
    file_bytes bytes;
    bytes.copy_.resize(static_cast<std::size_t>(size));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(bytes.copy_.data()), size);
    if (!file || file.gcount() != size) throw Error(name + ": cannot be read");
    return bytes;
  }

  // The same without a copy: pages are read when they are touched. A file that cannot be mapped is
  // read.
  template <class Error>
  static file_bytes map(const std::filesystem::path& path) {
#if defined(HEED_HAS_MMAP)
    file_bytes bytes;
    if (bytes.map_pages(path)) return bytes;
#endif
    return read<Error>(path);
  }

  bool is_mapped() const noexcept {
    return is_mapped_;
  }
  std::span<const std::byte> bytes() const noexcept {
    return is_mapped_ ? mapped_ : std::span<const std::byte>(copy_);
  }

 private:
#if defined(HEED_HAS_MMAP)
  bool map_pages(const std::filesystem::path& path) noexcept {
    // Not to wait for the other end of a pipe.
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return false;
    struct ::stat status = {};
    if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
      const auto size = static_cast<std::size_t>(status.st_size);
      void* const start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
      is_mapped_ = start != MAP_FAILED;
      if (is_mapped_) mapped_ = {static_cast<const std::byte*>(start), size};
    }
    ::close(file);
    return is_mapped_;
  }
#endif

  std::vector<std::byte> copy_;
  std::span<const std::byte> mapped_;
  bool is_mapped_ = false;
};

// Calls write(stream) on a new file beside path, which then takes the place of path. Throws Error
// when that fails; then, and when write throws, path is what it was before.
template <class Error, class Write>
void replace_file(const std::filesystem::path& path, Write write) {
  struct part_file {
    std::filesystem::path path;
    bool there = true;
    ~part_file() {
      std::error_code ignored;
      if (there) std::filesystem::remove(path, ignored);
    }
  };
  part_file part{path};
  part.path += ".part";

  std::ofstream file(part.path, std::ios::binary | std::ios::trunc);
  if (!file) {
    part.there = false;
    throw Error(path.string() + ": cannot be written");
  }
  write(file);
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part.path, path, error);
  if (!file || error) throw Error(path.string() + ": cannot be written");
  part.there = false;
}

}  // namespace heed::inline HEED_ABI::io
