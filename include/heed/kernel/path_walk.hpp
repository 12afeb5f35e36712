// How PaTH's rows stand on their way back over chunks and nodes.
#pragma once

#include "heed/config.hpp"

namespace heed::inline HEED_ABI::kernel {

// Runs of rows that stand in one chunk: they walk together. Column panels never straddle a chunk
// or node that some run reads, so one key version serves a whole panel in each run.
struct path_run {
  index begin, end;  // rows of the block
  index chunk;       // where they stand
  index edge;        // their queries have been carried to the start of this chunk
  index newest;      // the newest token of a row
};

// Walks of rows over nodes, and the queries as they were before: what the way back restores.
template <class T>
struct path_journal {
  struct walk {
    index begin, end;  // rows
    index from;        // the edge that they left
    T* queries;        // [heads][end - begin][padded_D]
  };
  walk* walks = nullptr;
  index count = 0;
  T* free = nullptr;  // where the next queries go
};

}  // namespace heed::inline HEED_ABI::kernel
