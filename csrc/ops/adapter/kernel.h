// What one level's kernels look like to the code above them. Not for callers: they see adapter.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace trivium::adapter {

// Ranks are computed in runs of so many: A is padded with zeros to a multiple.
inline constexpr std::size_t kRankBlock = 16;

// Rows times one block of ranks: hidden[i, 0 .. kRankBlock) = x[rows[i]] * a.
struct ShrinkArgs {
  const float* a;        // [K][a_stride], from the block's first rank on
  std::size_t a_stride;  // padded rank
  std::size_t depth;
  const float* x;  // [.., depth]
  const std::uint32_t* rows;
  std::size_t num_rows;
  float* hidden;  // of the first of the rows
  std::size_t hidden_stride;
};

// Columns of one product: out[rows[i], 0 .. num_cols) = scale * hidden[i] * b.
struct ExpandArgs {
  const float* b;        // [rank][b_stride], from the first column on
  std::size_t b_stride;  // N
  std::size_t rank;
  float scale;
  const float* hidden;  // of the first of the rows
  std::size_t hidden_stride;
  const std::uint32_t* rows;
  std::size_t num_rows;
  std::size_t num_cols;
  float* out;  // of row 0, from the first column on
  std::size_t out_stride;
};

struct Kernel {
  Isa isa;
  const char* name;
  void (*shrink)(const ShrinkArgs& args);
  void (*expand)(const ExpandArgs& args);
};

}  // namespace trivium::adapter
