// The register tile of products with integer codes (kQ8 operands). Internal linkage: included by ISA files only.
//
// kRows rows by kVecs vectors of columns, over all of k. Per group of 32 values of k (64 where operand and weights have
// groups of 64), vector after vector, so that the panel is read in the order in which it lies:
//
//   units of 4 k          quads of the group, one vector of columns
//   row 0  [x x x x]      w = quad(0)       dot[r] += x[r] . w        exact integers
//   row 1  [x x x x]  ->  w = quad(1)       …
//   …                     …
//   at the group's end    acc[r][v] = fma(float(dot[r]), scale_w * scale_x[r], acc[r][v])
//                         acc[r][v] = fma(min_w, sum_x[r], acc[r][v])
//
// Meanwhile the panel that comes next is fetched: into L1 where codes are below 8 bits, which took a tenth off the time
// at 16 rows; bytes are too many for that.
//
// scale_w and min_w are read first, since they lie first: out of order, the stream of cold weights comes in at half the
// rate.
//
// Registers: kRows of dot, kRows * kVecs of acc, w, x, scale_w, min_w, masks. The int_vectors of each level keeps that
// below its number of registers.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/linear/ahead_inl.h"
#include "ops/linear/codes_inl.h"
#include "simd/repeat.h"

namespace trivium::linear {
namespace {

// Groups of 32 that a sum of integers spans, and sums per group of 32 where it is shorter.
template <class F>
constexpr int kSpan = std::max(F::kGroup / static_cast<int>(operand::kGroup), 1);
template <class F>
constexpr int kPiecesOf = std::max(static_cast<int>(operand::kGroup) / F::kGroup, 1);

// What stays in registers over a panel, and what walks along it.
template <class L, class F, int kRows, int kVecs>
struct IntTile {
  using Floats = typename L::Floats;
  static constexpr int kPieces = kPiecesOf<F>;
  static constexpr int kPieceQuads = F::kGroup / 4;
  using Dot = typename L::template Dot<F::kDotBits, kPieceQuads>;

  static constexpr int kGroupQuads = static_cast<int>(kQuads);

  Floats acc[kRows][kVecs];

  // Quads [kFrom, kTo) of the integer sums of one piece (16, 32 or 64 values of k) for one vector of columns; `units`
  // are those of quad kFrom. Groups of 32 lie apart.
  template <int kFrom, int kTo>
  [[gnu::always_inline]] static void multiply(const std::byte* lines, int piece, const std::uint32_t* units,
                                              const std::uint32_t* sums, std::size_t stride, Dot (&dot)[kRows]) {
    if constexpr (kFrom == 0) {
      repeat<kRows>([&](auto r) TRIV_UNROLLED {
        if constexpr (F::kZero != 0) {
          dot[r].start(sums + r);
        } else {
          dot[r].start();
        }
      });
    }
    repeat<kTo - kFrom>([&](auto i) TRIV_UNROLLED {
      const int q = kFrom + i;
      const int at = piece * kPieceQuads + q;
      const std::byte* group = lines + static_cast<std::size_t>(at / kGroupQuads) * F::kGroupBytes;
      const typename Dot::Weights w = Dot::weights(F::template quad<L>(group, at % kGroupQuads));
      repeat<kRows>([&](auto r) TRIV_UNROLLED { dot[r].add(q, w, units + r); });
      units += stride;
    });
  }

  // Their place in the float sums.
  template <int kVec>
  [[gnu::always_inline]] void add(Floats scale, Floats min, const float* unit_scales, const std::uint32_t* sums,
                                  Dot (&dot)[kRows]) {
    repeat<kRows>([&](auto r) TRIV_UNROLLED {
      Floats factor = L::splat(unit_scales + r);
      if constexpr (!F::kHasColumnScale) factor = L::mul(scale, factor);
      acc[r][kVec] = L::fma(L::of(dot[r].finish(sums + r, F::kZero != 0)), factor, acc[r][kVec]);
      if constexpr (F::kHasMin) {
        acc[r][kVec] = L::fma(min, L::splat(reinterpret_cast<const float*>(sums + r)), acc[r][kVec]);
      }
    });
  }

  // One sum over several groups of 32, group after group for all vectors: as the panel lies. For few rows, which wait
  // for memory and have registers to spare.
  [[gnu::always_inline]] void add_in_order(std::size_t first_col, const std::byte* lines, const std::byte* block,
                                           const std::byte* group, const float* scales, const float* mins,
                                           const std::uint32_t* units, const float* unit_scales,
                                           const std::uint32_t* sums, std::size_t stride) {
    Floats scale[kVecs];
    Floats min[kVecs];
    repeat<kVecs>([&](auto v) TRIV_UNROLLED {
      const std::size_t col = first_col + static_cast<std::size_t>(v * L::kCols);
      scale[v] = F::template scale<L>(scales, block, group, 0, col);
      min[v] = L::zero();
      if constexpr (F::kHasMin) min[v] = F::template min<L>(mins, block, group, 0, col);
    });
    Dot dot[kVecs][kRows];
    repeat<kSpan<F>>([&](auto part) TRIV_UNROLLED {
      constexpr int kFrom = static_cast<int>(part) * kGroupQuads;
      repeat<kVecs>([&](auto v) TRIV_UNROLLED {
        multiply<kFrom, kFrom + kGroupQuads>(reloaded(lines) + vector_offset<L>(v, F::kBits), 0,
                                             reloaded(units) + static_cast<std::size_t>(kFrom) * stride, sums, stride,
                                             dot[v]);
      });
    });
    repeat<kVecs>([&](auto v) TRIV_UNROLLED { add<v>(scale[v], min[v], reloaded(unit_scales), sums, dot[v]); });
  }
};

// A sum's worth of lines, L::kNear bytes on: a few rows wait for memory alone, and bytes come too fast for the
// processor's own prefetching.
template <class L, class F>
[[gnu::always_inline]] inline void fetch_near(const std::byte* group) {
  for (std::size_t at = 0; at < kSpan<F> * group_bytes(F::kBits) + kLine; at += kLine) {
    L::template fetch<Into::kL2>(group + L::kNear + at);
  }
}

template <class L, class F, int kRows, int kVecs>
[[gnu::always_inline]] inline Ahead run_columns(const TileArgs& t, std::size_t first_col, Ahead ahead) {
  using Tile = IntTile<L, F, kRows, kVecs>;
  using Floats = typename L::Floats;
  constexpr bool kHasSums = F::kZero != 0 || F::kHasMin;
  constexpr Into kInto = F::kBits < 8 ? Into::kL1 : Into::kL2;
  constexpr bool kFetchesNext = kRows >= kAheadRows;
  Tile tile;
  repeat<kRows>([&](auto r)
                    TRIV_UNROLLED { repeat<kVecs>([&](auto v) TRIV_UNROLLED { tile.acc[r][v] = L::zero(); }); });
  const std::uint32_t* units = t.units;
  const std::uint32_t* sums = t.sums;
  const float* unit_scales = t.unit_scales;
  const std::size_t stride = t.stride;
  const std::size_t block_groups = t.block_groups;
  const std::size_t block_bytes = t.block_bytes;
  const std::byte* block = t.blocks;
  const float* scales = t.scales;
  const float* mins = t.mins;
  const std::size_t offset = column_offset(first_col, F::kBits);
  for (std::size_t b = t.num_blocks; b != 0; --b, block += block_bytes) {
    for (std::size_t g = 0; g < block_groups; g += kSpan<F>) {
      const std::byte* group = F::group(block, g);
      if constexpr (!kFetchesNext && F::kBits == 8 && L::kNear > 0) fetch_near<L, F>(group);
      if constexpr (kSpan<F> > 1 && kRows <= kAheadRows) {
        tile.add_in_order(first_col, group + F::kCodesAt + offset, block, group, scales, mins, units, unit_scales, sums,
                          stride);
      } else {
        repeat<kVecs>([&](auto v) TRIV_UNROLLED {
          const std::size_t col = first_col + static_cast<std::size_t>(v * L::kCols);
          repeat<Tile::kPieces>([&](auto piece) TRIV_UNROLLED {
            constexpr std::size_t kPiece = static_cast<std::size_t>(piece);
            const std::byte* piece_group = reloaded(group);
            const std::uint32_t* piece_units = reloaded(units) + kPiece * Tile::kPieceQuads * stride;
            const std::uint32_t* piece_sums = kHasSums ? reloaded(sums) + kPiece * stride : nullptr;
            Floats scale = L::zero();
            Floats min = L::zero();
            if constexpr (!F::kHasColumnScale) scale = F::template scale<L>(scales, block, piece_group, kPiece, col);
            if constexpr (F::kHasMin) min = F::template min<L>(mins, block, piece_group, kPiece, col);
            typename Tile::Dot dot[kRows];
            Tile::template multiply<0, Tile::kPieceQuads>(
                piece_group + F::kCodesAt + offset + vector_offset<L>(v, F::kBits), piece, piece_units, piece_sums,
                stride, dot);
            tile.template add<v>(scale, min, reloaded(unit_scales), piece_sums, dot);
          });
        });
      }
      units += kSpan<F> * kQuads * stride;
      unit_scales += stride;
      if constexpr (F::kIsUnpacked) {
        scales += kSpan<F> * Tile::kPieces * kPanel;
        if constexpr (F::kHasMin) mins += kSpan<F> * Tile::kPieces * kPanel;
      }
      if constexpr (kHasSums) sums += Tile::kPieces * stride;
      if constexpr (kFetchesNext) ahead.template fetch<L, kInto>();
    }
  }
  repeat<kVecs>([&](auto v) TRIV_UNROLLED {
    const std::size_t col = first_col + static_cast<std::size_t>(v * L::kCols);
    repeat<kRows>([&](auto r) TRIV_UNROLLED {
      Floats value = tile.acc[r][v];
      if constexpr (F::kHasColumnScale) value = L::mul(value, L::load(t.scales + col));
      L::store(value, t.out + static_cast<std::size_t>(r) * kPanel + col);
    });
  });
  return ahead;
}

template <class L, class F, int kRows>
void run_int_tile(const TileArgs& t) {
  constexpr int kVecs = L::int_vectors(kRows);
  constexpr std::size_t kCols = kVecs * L::kCols;
  Ahead ahead(t, kPanel / kCols * t.num_blocks * t.block_groups / kSpan<F>);
  for (std::size_t col = 0; col < kPanel; col += kCols) ahead = run_columns<L, F, kRows, kVecs>(t, col, ahead);
}

// Entry r - 1 runs r rows, kFirst <= r <= kRows.
template <class L, class F, int kRows, int kFirst = 1>
struct IntTiles {
  TileFn tiles[kRows];
  constexpr IntTiles() : tiles{} { fill<kRows>(); }
  template <int kRow>
  constexpr void fill() {
    tiles[kRow - 1] = run_int_tile<L, F, kRow>;
    if constexpr (kRow > kFirst) fill<kRow - 1>();
  }
};

template <class L, class F>
void unpack_panel(const UnpackArgs& t) {
  constexpr std::size_t kPieces = kPiecesOf<F>;
  std::byte* codes = t.codes;
  float* scales = t.scales;
  float* mins = t.mins;
  const std::byte* block = t.blocks;
  for (std::size_t b = t.num_blocks; b != 0; --b, block += t.block_bytes) {
    for (std::size_t g = 0; g < t.block_groups; ++g) {
      const std::byte* group = F::group(block, g);
      for (std::size_t col = 0; col < kPanel; col += L::kCols) {
        const std::byte* lines = group + F::kCodesAt + column_offset(col, F::kBits);
        std::byte* to = codes + column_offset(col, 8);
        repeat<static_cast<int>(kQuads)>(
            [&](auto q) TRIV_UNROLLED { L::store(F::template quad<L>(lines, q), to + q * static_cast<int>(kLine)); });
        for (std::size_t piece = 0; piece < kPieces; ++piece) {
          L::store(F::template scale<L>(nullptr, block, group, piece, col), scales + piece * kPanel + col);
          if constexpr (F::kHasMin) {
            L::store(F::template min<L>(nullptr, block, group, piece, col), mins + piece * kPanel + col);
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
