// The register tile of products with integer codes (kQ8 operands). Internal linkage: included by ISA files only.
//
// kRows rows by kVecs vectors of columns, over all of k; per group, in this order for every output:
//
//   units of 4 k          quads of the group: one per 4 k, for kVecs vectors
//   row 0  [x x x x]      w = quad(0)       dot[r][v] += x[r] . w[v]       exact integers
//   row 1  [x x x x]  ->  w = quad(1)       …
//   …                     …
//   at the group's end    acc[r][v] = fma(float(dot[r][v]), scale_w[v] * scale_x[r], acc[r][v])
//                         acc[r][v] = fma(min_w[v], sum_x[r], acc[r][v])
//
// Registers: 2 * kRows * kVecs for dot and acc, kVecs of w, one of x unless it is a broadcast operand, masks.
// int_vectors of each level keeps that below its number of registers.
#pragma once

#include <cstddef>

#include "ops/linear/ahead_inl.h"
#include "ops/linear/codes_inl.h"
#include "ops/linear/repeat_inl.h"

namespace trivium::linear {
namespace {

// What stays in registers over a panel, and what walks along it.
template <class L, class F, int kRows, int kVecs>
struct IntTile {
  using Floats = typename L::Floats;
  using Dot = typename L::template Dot<F::kDotBits>;
  static constexpr int kPieces = static_cast<int>(operand::kGroup) / F::kGroup;
  static constexpr int kPieceQuads = F::kGroup / 4;

  Floats acc[kRows][kVecs];
  const std::uint32_t* units;
  const std::uint32_t* sums;
  const float* unit_scales;
  std::size_t stride;

  // The integer sums of one piece: a group of the weight's, within a group of 32.
  [[gnu::always_inline]] void multiply(const std::byte* lines, int piece, Dot (&dot)[kRows][kVecs]) {
    repeat<kRows>([&](auto r) TRIV_UNROLLED {
      repeat<kVecs>([&](auto v) TRIV_UNROLLED {
        if constexpr (F::kZero != 0) {
          dot[r][v].start(sums + r);
        } else {
          dot[r][v].start();
        }
      });
    });
    repeat<kPieceQuads>([&](auto q) TRIV_UNROLLED {
      typename Dot::Weights w[kVecs];
      repeat<kVecs>([&](auto v) TRIV_UNROLLED {
        w[v] = Dot::weights(F::template quad<L>(lines + vector_offset<L>(v, F::kBits), piece * kPieceQuads + q));
      });
      repeat<kRows>([&](auto r) TRIV_UNROLLED {
        repeat<kVecs>([&](auto v) TRIV_UNROLLED { dot[r][v].add(q, w[v], units + r); });
      });
      units += stride;
    });
  }

  // Their place in the float sums; `sub` counts the groups of the block's record.
  [[gnu::always_inline]] void add(const TileArgs& t, const std::byte* block, std::size_t sub, std::size_t col,
                                  Dot (&dot)[kRows][kVecs]) {
    repeat<kVecs>([&](auto v) TRIV_UNROLLED {
      const std::size_t at = col + static_cast<std::size_t>(v * L::kCols);
      [[maybe_unused]] Floats scale;
      [[maybe_unused]] Floats min;
      if constexpr (!F::kHasColumnScale) scale = F::template scale<L>(t.scales, block, sub, at);
      if constexpr (F::kHasMin) min = F::template min<L>(t.mins, block, sub, at);
      repeat<kRows>([&](auto r) TRIV_UNROLLED {
        Floats factor = L::splat(unit_scales + r);
        if constexpr (!F::kHasColumnScale) factor = L::mul(scale, factor);
        acc[r][v] = L::fma(L::of(dot[r][v].finish(sums + r, F::kZero != 0)), factor, acc[r][v]);
        if constexpr (F::kHasMin) {
          acc[r][v] = L::fma(min, L::splat(reinterpret_cast<const float*>(sums + r)), acc[r][v]);
        }
      });
    });
    if constexpr (F::kZero != 0 || F::kHasMin) sums += stride;
  }
};

template <class L, class F, int kRows, int kVecs>
[[gnu::always_inline]] inline Ahead run_columns(const TileArgs& t, std::size_t col, Ahead ahead) {
  using Tile = IntTile<L, F, kRows, kVecs>;
  Tile tile;
  repeat<kRows>([&](auto r)
                    TRIV_UNROLLED { repeat<kVecs>([&](auto v) TRIV_UNROLLED { tile.acc[r][v] = L::zero(); }); });
  tile.units = t.units;
  tile.sums = t.sums;
  tile.unit_scales = t.unit_scales;
  tile.stride = t.stride;
  const std::size_t block_groups = t.block_groups;
  const std::size_t block_bytes = t.block_bytes;
  const std::byte* block = t.blocks;
  const std::size_t offset = column_offset(col, F::kBits);
  for (std::size_t b = t.num_blocks; b != 0; --b, block += block_bytes) {
    for (std::size_t g = 0; g < block_groups; ++g) {
      const std::byte* lines = F::codes(block, g) + offset;
      repeat<Tile::kPieces>([&](auto piece) TRIV_UNROLLED {
        typename Tile::Dot dot[kRows][kVecs];
        tile.multiply(lines, piece, dot);
        tile.add(t, block, g * Tile::kPieces + static_cast<std::size_t>(piece), col, dot);
      });
      tile.unit_scales += tile.stride;
      ahead.template fetch<L>();
    }
  }
  repeat<kVecs>([&](auto v) TRIV_UNROLLED {
    const std::size_t at = col + static_cast<std::size_t>(v * L::kCols);
    repeat<kRows>([&](auto r) TRIV_UNROLLED {
      typename L::Floats value = tile.acc[r][v];
      if constexpr (F::kHasColumnScale) value = L::mul(value, L::load(t.scales + at));
      L::store(value, t.out + static_cast<std::size_t>(r) * kPanel + at);
    });
  });
  return ahead;
}

template <class L, class F, int kRows>
void run_int_tile(const TileArgs& t) {
  constexpr int kVecs = L::int_vectors(kRows);
  constexpr std::size_t kCols = kVecs * L::kCols;
  Ahead ahead(t, kPanel / kCols * t.num_blocks * t.block_groups);
  for (std::size_t col = 0; col < kPanel; col += kCols) ahead = run_columns<L, F, kRows, kVecs>(t, col, ahead);
}

// Entry r - 1 runs r rows.
template <class L, class F, int kRows>
struct IntTiles {
  TileFn tiles[kRows];
  constexpr IntTiles() : tiles{} { fill<kRows>(); }
  template <int kRow>
  constexpr void fill() {
    tiles[kRow - 1] = run_int_tile<L, F, kRow>;
    if constexpr (kRow > 1) fill<kRow - 1>();
  }
};

template <class L, class F>
void unpack_panel(const UnpackArgs& t) {
  constexpr std::size_t kPieces = operand::kGroup / F::kGroup;
  std::byte* codes = t.codes;
  float* scales = t.scales;
  float* mins = t.mins;
  const std::byte* block = t.blocks;
  for (std::size_t b = t.num_blocks; b != 0; --b, block += t.block_bytes) {
    for (std::size_t g = 0; g < t.block_groups; ++g) {
      for (std::size_t col = 0; col < kPanel; col += L::kCols) {
        const std::byte* lines = F::codes(block, g) + column_offset(col, F::kBits);
        std::byte* to = codes + column_offset(col, 8);
        repeat<static_cast<int>(kQuads)>(
            [&](auto q) TRIV_UNROLLED { L::store(F::template quad<L>(lines, q), to + q * static_cast<int>(kLine)); });
        for (std::size_t piece = 0; piece < kPieces; ++piece) {
          const std::size_t sub = g * kPieces + piece;
          L::store(F::template scale<L>(nullptr, block, sub, col), scales + piece * kPanel + col);
          if constexpr (F::kHasMin) {
            L::store(F::template min<L>(nullptr, block, sub, col), mins + piece * kPanel + col);
          }
        }
      }
      codes += group_bytes(8);
      scales += kPieces * kPanel;
      if constexpr (F::kHasMin) mins += kPieces * kPanel;
    }
  }
}

}  // namespace
}  // namespace trivium::linear
