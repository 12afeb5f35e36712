// The names that published code gives to a layer's parameters, and heed's.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "heed/config.hpp"

namespace heed::inline HEED_ABI::layers {

// A row of a layer's table. It holds where the layer has the parameter `ours` and, if `beside` is
// given, that one, too.
struct parameter_name {
  std::string_view official, ours, beside = {};
};

// The official name of `ours` in a layer that has the parameters `all`; `ours` itself where no row
// of the table holds. The first row that holds counts.
inline std::string official_name(std::span<const parameter_name> table, const std::string& ours,
                                 std::span<const std::string> all) {
  for (const parameter_name& row : table) {
    if (row.ours != ours) continue;
    bool holds = row.beside.empty();
    for (const std::string& name : all) holds = holds || name == row.beside;
    if (holds) return std::string(row.official);
  }
  return ours;
}

}  // namespace heed::inline HEED_ABI::layers
