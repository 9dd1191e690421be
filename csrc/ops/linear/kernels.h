// What one level's kernels look like to the code above them. Not for callers: they see linear.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "ops/linear/format.h"
#include "ops/linear/linear.h"
#include "ops/operand/operand.h"

namespace trivium::linear {

// One register tile's work: some rows of an operand's tile times one panel.
//
// The panel is read as num_blocks blocks, each block_bytes long, of block_groups groups of 32 (two at a time with
// operands of groups of 64). An unpacked panel is a
// single block: codes of 8 bits, and scales and minima as float [K / g][kPanel].
struct TileArgs {
  const std::byte* blocks;
  std::size_t num_blocks;
  std::size_t block_bytes;
  std::size_t block_groups;
  const float* scales;  // unpacked, and the header of i8_c
  const float* mins;    // unpacked

  const std::uint32_t* units;  // of the first row; row r is r words on, the next unit `stride` words on
  const float* unit_scales;    // likewise
  const std::uint32_t* sums;   // likewise; int32 or float, see operand::SumKind
  std::size_t stride;          // R of the operand's tile

  float* out;  // [rows][kPanel]

  // What will be read soon: fetched while this tile computes, spread evenly over it.
  const std::byte* ahead;
  const std::byte* ahead_end;
};

using TileFn = void (*)(const TileArgs& args);

// A packed panel as bytes and floats: see TileArgs.
struct UnpackArgs {
  const std::byte* blocks;
  std::size_t num_blocks;
  std::size_t block_bytes;
  std::size_t block_groups;
  std::byte* codes;  // [K / 32][group_bytes(8)]
  float* scales;
  float* mins;
};

using UnpackFn = void (*)(const UnpackArgs& args);

// Rows of a register tile from which on it fetches the next panel. Fewer rows read at the rate of memory anyway, and a
// fetch in between only slows the stream.
inline constexpr int kAheadRows = 4;

// Where a line that is fetched ahead goes.
enum class Into : std::uint8_t { kL1, kL2 };

// How one format is multiplied. Entry r - 1 runs r rows; taller tiles run in equal pieces of at most max_rows.
struct FormatKernels {
  std::size_t max_rows;
  const TileFn* direct;    // reads the packed panel
  const TileFn* unpacked;  // reads an unpacked panel, from kUnpackable rows on; null where that gains nothing
  UnpackFn unpack;
};

// Fewer rows of one panel than that do not repay unpacking it: they read it as it is, whatever was asked for. Pieces of
// so many rows are half of max_rows at least.
inline constexpr std::size_t kUnpackable = 9;

// Finishes a block of results: rows [first_row, first_row + num_rows) of M, one panel wide.
struct FinishArgs {
  const Epilogue* epilogue;
  std::size_t total_rows;  // M
  std::size_t first_row;
  std::size_t num_rows;
  std::size_t first_col;  // of the output, counted over all parts; kGated: of the operand
  std::size_t num_cols;   // up to kPanel are valid
  float* y;               // [num_rows][kPanel], changed; kGated: the gate
  const float* before;    // kGated, second half of a group of the operand: the panel to the left, finished; else null
  bool is_half;           // kGated, first half of a group: the operand is written with the second
  float* up;              // kGated
  std::size_t up_col;     // kGated: column of `up` over all parts
  std::size_t num_pad;    // kGated: columns after these that the operand has as padding; a multiple of kPanel
};

using FinishFn = void (*)(const FinishArgs& args);

struct Kernels {
  Isa isa;
  const char* name;
  FormatKernels (*format)(FormatId id, operand::Format left);
  FinishFn finish;
};

}  // namespace trivium::linear
