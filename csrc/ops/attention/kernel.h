// What one instruction set offers attention: the functions that run.cpp calls for a few rows at a time.
//
// A bundle is up to kBundleRows rows (one row: one query head of one token) that read the same KV head. Its queries lie
// in units, so that a step of a score broadcasts from one place with constant offsets:
//
//   units   [D / step][kBundleRows]     step: elements per unit, 2 for bf16, 1 for float32
//           [kBundleRows][D / step]     for AMX, which reads sixteen rows from the first of a block on, be they its or
//           not
//
// Letters: R rows of a call, D head width, P padded to a multiple of 16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/attention/pages.h"
#include "ops/operand/operand.h"

namespace trivium::attention {

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kBundleRows = 48;
inline constexpr std::size_t kTilePages = kTile / kPageLen;
inline constexpr std::size_t kMaxUnitBytes = 4;  // per element of a query, over all levels

// The softmax of some rows so far:  out[r] = acc[r] / sum over lanes of sum[r], everything relative to 2^max[r].
//
// A row that has seen nothing has max = the lowest float, sum = acc = 0; merging it changes nothing.
struct State {
  float* max;  // [R], and kLanes - 1 floats after it that a call may overwrite
  float* sum;  // [R][kLanes]
  float* acc;  // [R][P]

  State at(std::size_t row, std::size_t padded_width) const {
    return {max + row, sum + row * kLanes, acc + row * padded_width};
  }
};

// One KV head's pages of one request and layer.
struct Pages {
  const std::byte* heads;    // the head in page 0
  std::size_t stride_bytes;  // from page to page
  const std::int32_t* ids;   // by position / kPageLen; only [begin, end) are read
  std::size_t begin;
  std::size_t end;
};

// Tiles [tile_begin, tile_end) for rows [row_begin, row_end) of a bundle, which see the same pages. Arrays are the
// bundle's, from its row 0 on.
struct Call {
  const HeadLayout* layout;
  float soft_cap;  // times log2(e); 0: none
  Pages pages;
  std::size_t tile_begin;
  std::size_t tile_end;
  std::size_t row_begin;
  std::size_t row_end;
  const void* units;
  State state;
  const std::int32_t* first_seen;  // a row sees positions first_seen to last_seen
  const std::int32_t* last_seen;
  Pages next;  // what is read after this call, to be fetched meanwhile; stride 0: nothing
  std::size_t next_tile;
  std::uint32_t* unpacked;  // kI8: room for the pairs of one tile, kTilePages * 8 * (D + P) words
};

// Writes one row's output, as floats, into an operand, or both.
struct Finish {
  State state;
  std::size_t width;
  float* floats;                  // [D], or null
  const operand::Layout* layout;  // elements [first, first + D) of this row; or null
  operand::Row row;
  std::size_t first;
};

struct Functions {
  // A query [D] (float or bf16) into the units of one row of a bundle.
  void (*load_query)(const HeadLayout& layout, const void* query, void* units, std::size_t row);
  void (*attend)(const Call& call);
  // Merges what `from` has seen into `into`, which is left of it.
  void (*fold)(const State& from, const State& into, std::size_t num_rows, std::size_t padded_width);
  void (*finish)(const Finish& finish);
};

}  // namespace trivium::attention
