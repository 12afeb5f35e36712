// How a KvCache goes to a stream and comes back; part of cache.hpp.
#pragma once

#include "heed/cache.hpp"

namespace heed::inline HEED_ABI {

template <class Element, class... Mechanisms>
kernel::token_store KvCache<Element, Mechanisms...>::empty_store() const {
  return kernel::token_store(lanes::sizes(all_, problem_),
                             lanes::source_type::aside_bytes(problem_));
}

template <class Element, class... Mechanisms>
kernel::cache_header KvCache<Element, Mechanisms...>::header() const noexcept {
  const auto number = [](index n) { return static_cast<std::uint64_t>(n); };
  const std::vector<kernel::lane_size> sizes = lanes::sizes(all_, problem_);
  kernel::cache_header h;
  h.element_bytes = sizeof(T);
  h.stored_bytes = sizeof(stored_type);
  if constexpr (half_type<stored_type>) {
    h.stored_fraction = std::is_same_v<stored_type, bfloat16> ? 7 : 10;
  }
  h.strip = number(kernel::strip_width<T, Arch>);
  h.sequences = number(shape_.sequences);
  h.heads = number(shape_.heads);
  h.kv_heads = number(shape_.kv_heads);
  h.head_size = number(shape_.head_size);
  h.value_size = number(shape_.value_size);
  h.lanes = sizes.size();
  h.layout = kernel::layout_of(sizes);
  return h;
}

template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::save(std::ostream& to) const {
  kernel::write_header(to, header());
  for (std::size_t n = 0; n < stores_.size(); ++n) {
    const kernel::token_store& s = stores_[n];
    const auto number = [](index x) { return static_cast<std::uint64_t>(x); };
    kernel::cache_entry entry{number(s.length()), number(s.before()), number(asked_[n].begin),
                              number(asked_[n].end), 0};
    entry.check = kernel::check_of(entry);
    kernel::write_bytes(to, &entry, sizeof entry);
    s.visit(s.length(),
            [&](const std::byte* data, std::size_t size) { kernel::write_bytes(to, data, size); });
  }
}

template <class Element, class... Mechanisms>
typename KvCache<Element, Mechanisms...>::asked_rows KvCache<Element, Mechanisms...>::load_sequence(
    std::istream& from, kernel::token_store& to) const {
  kernel::cache_entry entry;
  kernel::read_bytes(from, &entry, sizeof entry, "a sequence's lengths");
  const auto number = [](std::uint64_t x) { return static_cast<index>(x); };
  const index length = number(entry.length), before = number(entry.before);
  if (entry.check != kernel::check_of(entry) || length < 0 || before < 0 ||
      length > mask::unlimited || before > mask::unlimited || (before > 0 && !shape_.ring)) {
    throw kernel::cache_stream_error(
        "heed: KvCache::load: a sequence's lengths are damaged, or of a ring");
  }
  if (shape_.max_length > 0 && length + before > shape_.max_length) {
    throw kernel::cache_stream_error("heed: KvCache::load: a sequence of " +
                                     std::to_string(length + before) +
                                     " tokens is longer than max_length");
  }
  to.reserve((std::max)(length, shape_.capacity));
  to.visit(length, [&](std::byte* data, std::size_t size) {
    kernel::read_bytes(from, data, size, "a sequence's tokens");
  });
  to.restore(length, before);
  return {number(entry.asked_begin), number(entry.asked_end)};
}

template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::load(std::istream& from) {
  kernel::read_header(from, header());
  std::vector<kernel::token_store> stores;
  std::vector<asked_rows> asked;
  for (std::size_t n = 0; n < stores_.size(); ++n) {
    stores.push_back(empty_store());
    asked.push_back(load_sequence(from, stores.back()));
  }
  stores_.swap(stores);
  asked_.swap(asked);
}

}  // namespace heed::inline HEED_ABI
