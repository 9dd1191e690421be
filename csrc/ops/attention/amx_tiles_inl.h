// The two products of a tile by AMX: sixteen rows at a time, whatever their number. Included by one ISA file, after its
// lanes.
//
// A page lies in memory as AMX reads a right side: rows of 16 words, a word two elements that follow each other.
//
//   scores    queries [16 rows][32 elements]    x  keys   [16 pairs of elements][16 tokens]    += scores [16][16]
//   outputs   shares  [16 rows][16 tokens]      x  values [8 pairs of tokens][16 columns]      += sums   [16][16]
//
// What a row gets depends on that row alone, and its elements are cut in the same places always: 32 of a query (16 at
// its end, where D asks for it), the 16 tokens of a page.
//
//   registers   0 to 3: sums     4, 5: left and right of 32 elements     6, 7: of 16
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/bf16_dot_inl.h"
#include "ops/attention/tile_inl.h"
#include "simd/amx.h"
#include "simd/repeat.h"

namespace trivium::attention {
namespace {

inline constexpr TileShapes kAttentionTiles{
    1, 0, {}, {64, 64, 64, 64, 64, 64, 32, 64}, {16, 16, 16, 16, 16, 16, 16, 8}};

// As Bf16Dot, with queries row by row: [kBundleRows][D].
struct Bf16Rows : Bf16Dot {
  static void load_query(const void* query, std::size_t width, Unit* units) {
    __builtin_memcpy(units, query, 2 * width);
  }
};

struct AmxTiles {
  using Arithmetic = Bf16Rows;
  using Unit = Arithmetic::Unit;
  static constexpr std::size_t kMaxRows = 16;

  static const Unit* row_at(const void* units, std::size_t row, std::size_t num_steps) {
    return static_cast<const Unit*>(units) + row * num_steps;
  }

  // Scores of sixteen rows against all pages: those past the block's rows, and of positions that nobody sees, are
  // written and mean nothing.
  static void score_all(std::size_t, const Unit* units, std::size_t num_steps, const TilePages& pages, std::size_t,
                        std::size_t, float* out) {
    const std::size_t stride = num_steps * sizeof(Unit);
    repeat<4>([](auto page) TRIV_UNROLLED { tile_zero<page>(); });
    std::size_t step = 0;
    for (; step + 16 <= num_steps; step += 16) {
      tile_load<4>(units + step, stride);
      repeat<4>([&](auto page) TRIV_UNROLLED { multiply<page, 4, 5>(pages, page, step * kVectorBytes, kVectorBytes); });
    }
    if (step < num_steps) {
      tile_load<6>(units + step, stride);
      repeat<4>([&](auto page) TRIV_UNROLLED { multiply<page, 6, 7>(pages, page, step * kVectorBytes, kVectorBytes); });
    }
    repeat<4>([&](auto page) TRIV_UNROLLED { tile_store<page>(out + page * kPageLen, kTile * sizeof(float)); });
  }

  static void add_all(std::size_t num_rows, const Values<Arithmetic>& work) {
    const std::size_t num_vectors = work.padded_width / kLanes;
    std::size_t vector = 0;
    for (; vector + 4 <= num_vectors; vector += 4) add_columns<4>(num_rows, work, vector);
    for (; vector < num_vectors; ++vector) add_columns<1>(num_rows, work, vector);
  }

 private:
  static constexpr std::size_t kPageSteps = kPageLen / Arithmetic::kStep;

  // Adds left x the right side at `at` in a page, and fetches the same place of the next tile's.
  template <int kSum, int kLeft, int kRight>
  static void multiply(const TilePages& pages, std::size_t page, std::size_t at, std::size_t stride) {
    constexpr std::size_t kRows = kAttentionTiles.rows[kRight];
    const std::byte* next = pages.next[page] + at;
    if (pages.next[page] != pages.heads[page]) {
      for (std::size_t row = 0; row < kRows; ++row) fetch(next + row * stride);
    }
    tile_load<kRight>(pages.heads[page] + at, stride);
    tile_multiply_bf16<kSum, kLeft, kRight>();
  }

  // As above, of a page of which some tokens are seen by nobody: they may hold anything, and zeros take their place.
  template <int kSum>
  static void multiply_seen(const Values<Arithmetic>& work, std::size_t page, std::size_t at) {
    alignas(64) std::byte seen[kPageSteps][kVectorBytes];
    const std::byte* values = work.pages->heads[page] + at;
    for (std::size_t step = 0; step < kPageSteps; ++step, values += work.step_bytes) {
      const std::size_t place = page * kPageSteps + step;
      const bool is_seen = work.begin <= place && place < work.end;
      _mm512_store_si512(seen[step], is_seen ? _mm512_loadu_si512(values) : _mm512_setzero_si512());
    }
    tile_load<7>(seen, kVectorBytes);
    tile_multiply_bf16<kSum, 6, 7>();
  }

  // Columns [16 * vector, 16 * (vector + kVecs)):  acc' = acc * decay + the tile's sums.
  template <int kVecs>
  static void add_columns(std::size_t num_rows, const Values<Arithmetic>& work, std::size_t vector) {
    alignas(64) float sums[kMaxRows * kVecs * kLanes];
    repeat<kVecs>([](auto v) TRIV_UNROLLED { tile_zero<v>(); });
    for (std::size_t page = work.begin / kPageSteps; page * kPageSteps < work.end; ++page) {
      const std::size_t first = page * kPageSteps;
      const bool is_whole = work.begin <= first && first + kPageSteps <= work.end;
      tile_load<6>(work.shares + first, kTile / Arithmetic::kStep * sizeof(Unit));
      repeat<kVecs>([&](auto v) TRIV_UNROLLED {
        const std::size_t at = work.offset + (vector + v) * kVectorBytes;
        if (is_whole) {
          multiply<v, 6, 7>(*work.pages, page, at, work.step_bytes);
        } else {
          multiply_seen<v>(work, page, at);
        }
      });
    }
    repeat<kVecs>([&](auto v) TRIV_UNROLLED { tile_store<v>(sums + v * kLanes, kVecs * kVectorBytes); });
    for (std::size_t r = 0; r < num_rows; ++r) {
      const Lanes decay = Lanes::broadcast(work.decay[r]);
      float* out = work.acc + r * work.padded_width + vector * kLanes;
      for (int v = 0; v < kVecs; ++v) {
        fma(Lanes::load(out + v * 16), decay, Lanes::load(sums + (r * kVecs + v) * kLanes)).store(out + v * 16);
      }
    }
  }
};

}  // namespace
}  // namespace trivium::attention
