// The left operand of a product: rows of activations, stored the way the product's kernels read them.
//
// Rows come in tiles of equal height (at most kTileRows): a kernel broadcasts one 4-byte unit of every row of a tile
// per step, so a tile keeps the same unit of its rows side by side.
//
//   tile of R rows, depth K (padded to whole groups with zeros), U = units per row, G = 32 (kQ8) or 64 (kQ8Wide)
//
//   units    [U][R]            4 bytes each: kF32 one float; kBf16 k, k+1; kQ8 k, k+1, k+2, k+3 as signed bytes
//   scales   [K / G][R]        float, kQ8 only: value = unit * scale of its group of G
//   sums     [K / g][R]        kQ8 only, one block per SumKind that a product asks for
//
// A tile's blocks lie one after the other, tiles likewise; a row takes row_bytes() in all, so the tile of rows
// [begin, end) starts at begin * row_bytes().
//
// kQ8Wide is kQ8 but for G: products run faster where weights have groups of 64 or more, and are less exact.
//
// Meaning of kQ8 (what every writer computes, to the bit): per group, a = greatest |x|; scale = a / 127;
// unit = round to nearest even(x * (127 / a)); a = 0 gives zeros and scale 0. A NaN or an infinity in a group makes its
// scale NaN, and so every product it enters.
// Meaning of kBf16: round to nearest even; NaN stays NaN.
//
// Letters: M rows, K depth, R rows of a tile. Sizes count elements unless they end in _bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trivium::operand {

// As many as a register tile of products has. The rows of a tile share cache lines: few are best written by one thread.
inline constexpr std::size_t kTileRows = 8;
inline constexpr std::size_t kGroup = 32;
inline constexpr std::size_t kWideGroup = 64;
inline constexpr std::size_t kMaxSums = 4;

enum class Format : std::uint8_t { kF32, kBf16, kQ8, kQ8Wide };

constexpr bool is_quantised(Format format) { return format >= Format::kQ8; }

// A sum of units that products with offset weights add once per group instead of once per weight.
//
//   zero != 0:  int32, -zero * sum of the group's units. Weights are stored as w + zero: what the accumulator starts
//   at. zero == 0:  float, scale * sum of the group's units. Weights have a minimum: what multiplies it.
struct SumKind {
  std::uint8_t group;  // 16 or 32; 64 of kQ8Wide
  std::uint8_t zero;   // 0, or the offset of the weights: 1 to 128
};

struct Layout {
  Format format;
  std::size_t depth;  // K, padded to a multiple of group()
  SumKind sums[kMaxSums];
  std::size_t num_sums;

  // G; what writers write at a time, of the other formats too.
  std::size_t group() const { return format == Format::kQ8Wide ? kWideGroup : kGroup; }
  std::size_t units() const { return format == Format::kF32 ? depth : format == Format::kBf16 ? depth / 2 : depth / 4; }
  // 4-byte words that precede the scales, the first sums, … of one row.
  std::size_t scales_at() const { return units(); }
  std::size_t sums_at(std::size_t index) const {
    std::size_t at = units() + depth / group();
    for (std::size_t i = 0; i < index; ++i) at += depth / sums[i].group;
    return at;
  }
  std::size_t row_words() const { return is_quantised(format) ? sums_at(num_sums) : units(); }
  std::size_t row_bytes() const { return 4 * row_words(); }
};

// How M rows are cut into tiles: as few as possible, heights that differ by one at most.
struct Tiles {
  std::size_t rows;

  std::size_t count() const { return (rows + kTileRows - 1) / kTileRows; }
  std::size_t begin(std::size_t tile) const { return rows * tile / count(); }
  std::size_t height(std::size_t tile) const { return begin(tile + 1) - begin(tile); }
  // The tile that holds a row.
  std::size_t of(std::size_t row) const {
    std::size_t tile = row * count() / rows;
    while (begin(tile + 1) <= row) ++tile;
    while (begin(tile) > row) --tile;
    return tile;
  }
};

// Where one row's words lie: word w of the row is words[w * stride].
struct Row {
  std::uint32_t* words;
  std::size_t stride;  // R of its tile
};

inline Row row_at(const Layout& layout, void* operand, std::size_t num_rows, std::size_t row) {
  const Tiles tiles{num_rows};
  const std::size_t tile = tiles.of(row);
  const std::size_t first = tiles.begin(tile);
  auto* words = static_cast<std::uint32_t*>(operand) + first * layout.row_words() + (row - first);
  return {words, tiles.height(tile)};
}

// Writes a whole operand from rows [num_rows, width], padding with zeros up to layout.depth. One thread, and any
// level's bits: for tests and tools. Inside a step the op before writes its rows itself (operand_inl.h).
void write_rows(const float* values, std::size_t num_rows, std::size_t width, const Layout& layout, void* operand);

// What a row's units stand for: [depth] floats. For tests, and for finding where two runs part.
void read_row(const Layout& layout, const void* operand, std::size_t num_rows, std::size_t row, float* out);

}  // namespace trivium::operand
