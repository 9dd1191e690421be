// The two products of a tile, held in registers. Included by ISA files only; everything here has internal linkage.
//
//   scores   R rows x kVecs pages        acc[r][v] += unit(r, step) . keys of page v, step      over all D / kStep
//   steps values   R rows x kVecs x 16 columns acc[r][v] += share(r, step) . values of step, vector v over the tile's
//   steps
//
// Both are the same walk: per step kVecs vectors of 64 bytes are loaded, and each row's unit is broadcast to them.
#pragma once

#include <cstddef>

#include "ops/attention/arithmetic.h"

namespace trivium::attention {
namespace {

inline constexpr std::size_t kVectorBytes = 64;

// The pages of a tile, and those of the tile after it, whose lines are fetched into L2 while this one is computed. (Not
// into L1: that stalls on its few miss buffers, and costs up to 1.7 times the time.)
struct TilePages {
  const std::byte* heads[kTilePages];
  const std::byte* next[kTilePages];
};

inline void fetch(const std::byte* line) { __builtin_prefetch(line, 0, 2); }

// Scores of rows against pages [first, first + kVecs): out[r][page][16], rows kTile floats apart.
template <class A, int kRows, int kVecs>
void score(const typename A::Unit* units, std::size_t num_steps, const TilePages& pages, std::size_t first,
           float* out) {
  Lanes acc[kRows][kVecs];
  const std::byte* keys[kVecs];
  const std::byte* next[kVecs];
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) {
    keys[v] = pages.heads[first + static_cast<std::size_t>(v)];
    next[v] = pages.next[first + static_cast<std::size_t>(v)];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[r][v] = Lanes::zero();
  }
  const std::size_t end = num_steps * kVectorBytes;
  for (std::size_t at = 0; at != end; at += kVectorBytes) {
    typename A::Right right[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      right[v] = A::load(keys[v] + at);
      fetch(next[v] + at);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) acc[r][v] = A::dot(acc[r][v], right[v], units + r);
    }
    units += kBundleRows;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) acc[r][v].store(out + static_cast<std::size_t>(r) * kTile + v * 16);
  }
}

// What the rows of a block add to their outputs: shares [R][kTile / kStep units] of values at `offset` in each page.
template <class A>
struct Values {
  const typename A::Unit* shares;
  const TilePages* pages;
  std::size_t offset;      // of the values in a head, bytes
  std::size_t step_bytes;  // from one step's vectors to the next
  std::size_t begin;       // steps of the tile that some row sees
  std::size_t end;
  const float* decay;  // [R] what the outputs so far are multiplied with
  float* acc;          // [R][padded_width]
  std::size_t padded_width;
};

// Columns [16 * vector, 16 * (vector + kVecs)) of the outputs.
template <class A, int kRows, int kVecs>
void add_values(const Values<A>& work, std::size_t vector) {
  constexpr std::size_t kPageSteps = kPageLen / A::kStep;
  constexpr std::size_t kTileSteps = kTile / A::kStep;
  Lanes acc[kRows][kVecs];
  float* out = work.acc + vector * kLanes;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Lanes decay = Lanes::broadcast(work.decay[r]);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      acc[r][v] = mul(Lanes::load(out + static_cast<std::size_t>(r) * work.padded_width + v * 16), decay);
    }
  }
  for (std::size_t step = work.begin; step < work.end;) {
    const std::size_t page = step / kPageSteps;
    const std::size_t page_end = (page + 1) * kPageSteps;
    const std::size_t end = page_end < work.end ? page_end : work.end;
    const std::size_t at = work.offset + step % kPageSteps * work.step_bytes + vector * kVectorBytes;
    const std::byte* values = work.pages->heads[page] + at;
    const std::byte* next = work.pages->next[page] + at;
    const typename A::Unit* share = work.shares + step;
    for (; step != end; ++step) {
      typename A::Right right[kVecs];
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        right[v] = A::load(values + v * kVectorBytes);
        fetch(next + v * kVectorBytes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVecs; ++v) {
          acc[r][v] = A::dot(acc[r][v], right[v], share + static_cast<std::size_t>(r) * kTileSteps);
        }
      }
      values += work.step_bytes;
      next += work.step_bytes;
      ++share;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      acc[r][v].store(out + static_cast<std::size_t>(r) * work.padded_width + v * 16);
    }
  }
}

// How many vectors a tile of some rows has: as many as the level's accumulators allow, 1, 2 or 4.
constexpr int vecs_for(int rows, int accumulators) {
  return rows * 4 <= accumulators ? 4 : rows * 2 <= accumulators ? 2 : 1;
}

// The instances for every number of rows up to kMostRows.
template <class A, int kMostRows, int kAccumulators>
struct Instances {
  using Arithmetic = A;
  static constexpr std::size_t kMaxRows = kMostRows;

  static const typename A::Unit* row_at(const void* units, std::size_t row, std::size_t) {
    return static_cast<const typename A::Unit*>(units) + row;
  }

  template <int kRows = kMostRows>
  static void score_all(std::size_t rows, const typename A::Unit* units, std::size_t num_steps, const TilePages& pages,
                        std::size_t page_begin, std::size_t page_end, float* out) {
    if (rows != kRows) {
      if constexpr (kRows > 1) {
        score_all<kRows - 1>(rows, units, num_steps, pages, page_begin, page_end, out);
      }
      return;
    }
    constexpr int kVecs = vecs_for(kRows, kAccumulators);
    for (std::size_t page = page_begin / kVecs * kVecs; page < page_end; page += kVecs) {
      score<A, kRows, kVecs>(units, num_steps, pages, page, out + page * kPageLen);
    }
  }

  template <int kRows = kMostRows>
  static void add_all(std::size_t rows, const Values<A>& work) {
    if (rows != kRows) {
      if constexpr (kRows > 1) add_all<kRows - 1>(rows, work);
      return;
    }
    constexpr int kVecs = vecs_for(kRows, kAccumulators);
    const std::size_t num_vectors = work.padded_width / kLanes;
    std::size_t vector = 0;
    for (; vector + kVecs <= num_vectors; vector += kVecs) add_values<A, kRows, kVecs>(work, vector);
    if constexpr (kVecs == 4) {
      for (; vector + 2 <= num_vectors; vector += 2) add_values<A, kRows, 2>(work, vector);
    }
    if constexpr (kVecs > 1) {
      for (; vector < num_vectors; ++vector) add_values<A, kRows, 1>(work, vector);
    }
  }
};

}  // namespace
}  // namespace trivium::attention
