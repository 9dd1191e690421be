// The block kernel on any vector type. Included by the ISA files only; everything here has internal linkage.
//
// A tile is `kRows` rows of A by `kPanels` panels (or a part of one panel) of B, held in registers over all of k:
//
//              B: kPanels * kVecs vectors of one k
//              [ b00 b01 | b10 b11 ]
//   A(r0, k)   [ acc acc | acc acc ]   each acc: one fused multiply-add per k, k ascending
//   A(r1, k)   [ acc acc | acc acc ]
//
// Few rows use several panels at once, because one chain alone waits for the latency of its own multiply-add.
#pragma once

#include <cstddef>

#include "ops/gemm/gemm.h"

namespace trivium::gemm {
namespace {

// How many k ahead B is fetched: 4 KiB. Without it cold weights come at less than half the rate as soon as a tile has
// more than five rows, since the processor's window then spans too few k to keep enough loads in flight.
constexpr std::size_t kPrefetchDepth = 32;

// Where a tile reads and writes. `num_cols` counts the valid columns from c on; more than the tile has is fine.
struct Tile {
  const float* a;
  std::size_t a_stride;
  const float* b;
  std::size_t b_panel_stride;
  std::size_t b_depth_stride;
  float* c;
  std::size_t c_stride;
  std::size_t depth;
  std::size_t num_cols;
  bool is_resumed;
};

template <class V>
inline void store_columns(V value, float* to, std::size_t first, std::size_t num_cols) {
  if (first + V::kLanes <= num_cols) return value.store(to + first);
  float lanes[V::kLanes];
  value.store(lanes);
  for (std::size_t i = first; i < num_cols; ++i) to[i] = lanes[i - first];
}

template <class V>
inline V load_columns(const float* from, std::size_t first, std::size_t num_cols) {
  if (first + V::kLanes <= num_cols) return V::load(from + first);
  float lanes[V::kLanes] = {};
  for (std::size_t i = first; i < num_cols; ++i) lanes[i - first] = from[i];
  return V::load(lanes);
}

template <class V, int kRows, int kPanels, int kVecs>
void run_tile(const Tile& t) {
  V acc[kRows][kPanels * kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kVecs; ++v) {
      const auto first = static_cast<std::size_t>(v * V::kLanes);
      const float* from = t.c + static_cast<std::size_t>(r) * t.c_stride;
      acc[r][v] = t.is_resumed ? load_columns<V>(from, first, t.num_cols) : V::zero();
    }
  }
  const float* a = t.a;
  const float* b = t.b;
  const std::size_t a_stride = t.a_stride;
  const std::size_t b_panel_stride = t.b_panel_stride;
  const std::size_t b_depth_stride = t.b_depth_stride;
  for (std::size_t k = t.depth; k != 0; --k) {
    V column[kPanels * kVecs];
    if constexpr (V::kLanes > 1) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        const float* ahead = b + kPrefetchDepth * b_depth_stride + static_cast<std::size_t>(p) * b_panel_stride;
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 16);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kVecs; ++v) {
      column[v] = V::load(b + static_cast<std::size_t>(v / kVecs) * b_panel_stride + v % kVecs * V::kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V value = V::broadcast(a + static_cast<std::size_t>(r) * a_stride);
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kVecs; ++v) acc[r][v] = fma(value, column[v], acc[r][v]);
    }
    ++a;
    b += b_depth_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kVecs; ++v) {
      const auto first = static_cast<std::size_t>(v * V::kLanes);
      store_columns(acc[r][v], t.c + static_cast<std::size_t>(r) * t.c_stride, first, t.num_cols);
    }
  }
}

using TileFn = void (*)(const Tile&);

// One way of cutting a block: `tiles[r - 1]` runs r rows, up to kMaxRows; `pairs[r - 1]` runs r rows and two panels, up
// to kPairRows. A panel is covered by kPanelWidth / (lanes * vecs) tiles side by side.
template <class V, int kMaxRows, int kPairRows, int kVecs>
struct Cutting {
  static constexpr std::size_t kTileCols = static_cast<std::size_t>(kVecs * V::kLanes);

  template <int kRows>
  static TileFn pick(std::size_t rows) {
    if (rows == kRows) return run_tile<V, kRows, 1, kVecs>;
    if constexpr (kRows > 1) return pick<kRows - 1>(rows);
    return nullptr;
  }

  template <int kRows>
  static TileFn pick_pair(std::size_t rows) {
    if constexpr (kRows > 0) {
      if (rows == kRows) return run_tile<V, kRows, 2, kVecs>;
      return pick_pair<kRows - 1>(rows);
    }
    return nullptr;
  }

  static Tile tile_at(const Block& block, std::size_t row, std::size_t col) {
    const std::size_t panel = col / kPanelWidth;
    return {block.a.row(row),     block.a.stride,       block.b + panel * block.b_panel_stride + col % kPanelWidth,
            block.b_panel_stride, block.b_depth_stride, block.c.row(row) + col,
            block.c.stride,       block.a.cols,         block.c.cols - col,
            block.is_resumed};
  }

  // Panels outside, rows inside: a panel stays in L1/L2 while all rows pass. Rows are cut into tiles of nearly equal
  // size (16 rows are 8 + 8, not 12 + 4), so that no tile is left with too few chains to hide latency.
  static void run(const Block& block) {
    const std::size_t rows = block.a.rows;
    const std::size_t cols = block.c.cols;
    if (rows == 0) return;
    std::size_t col = 0;
    if constexpr (kPairRows > 0) {
      if (const TileFn pair = pick_pair<kPairRows>(rows)) {
        for (; col + kPanelWidth < cols; col += 2 * kPanelWidth) pair(tile_at(block, 0, col));
      }
    }
    const std::size_t num_tiles = (rows + kMaxRows - 1) / kMaxRows;
    const std::size_t low = rows / num_tiles;
    const std::size_t num_high = rows % num_tiles;  // so many tiles have low + 1 rows
    const TileFn high_fn = pick<kMaxRows>(low + 1);
    const TileFn low_fn = pick<kMaxRows>(low);
    for (; col < cols; col += kTileCols) {
      for (std::size_t i = 0, row = 0; i < num_tiles; ++i) {
        const bool is_high = i < num_high;
        (is_high ? high_fn : low_fn)(tile_at(block, row, col));
        row += low + (is_high ? 1 : 0);
      }
    }
  }
};

}  // namespace
}  // namespace trivium::gemm
