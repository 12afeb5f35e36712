// The rotation that a case describes.
#pragma once

#include "heed/mechanisms/rope.hpp"
#include "run.hpp"

namespace attend_program {

inline heed::rope rope_of(const case_folder& c) {
  const std::string style = c.choice("rope_style", {"half", "interleaved"});
  heed::rope rope;
  rope.theta = c.real("rope_theta");
  rope.pairs = style == "half" ? heed::rope_pairs::half : heed::rope_pairs::interleaved;
  rope.rotary_dim = c.has("rotary_dim") ? c.extent("rotary_dim") : 0;
  rope.offset = c.has("rope_offset") ? c.integer("rope_offset") : 0;
  return rope;
}

}  // namespace attend_program
