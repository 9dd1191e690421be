// Rows against tiles of keys and values, on any lanes and arithmetic. Included by ISA files only; everything here has
// internal linkage.
//
//   for each tile of the call, for each block of at most kMaxRows rows:
//       scores -> softmax -> outputs            the tile stays in L1 while all blocks pass
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/kernel.h"
#include "ops/attention/softmax_inl.h"
#include "ops/attention/tile_inl.h"

namespace trivium::attention {
namespace {

inline const std::byte* page_at(const Pages& pages, std::size_t index) {
  const std::size_t last = pages.end - 1;
  // A page that no row sees is never multiplied with anything but zero: any other stands in for it.
  const std::size_t held = index < pages.begin ? pages.begin : index > last ? last : index;
  return pages.heads + static_cast<std::size_t>(pages.ids[held]) * pages.stride_bytes;
}

inline TilePages locate(const Call& call, std::size_t tile) {
  TilePages found;
  const bool is_last = tile + 1 == call.tile_end;
  for (std::size_t i = 0; i < kTilePages; ++i) {
    found.heads[i] = page_at(call.pages, tile * kTilePages + i);
    found.next[i] = !is_last                      ? page_at(call.pages, (tile + 1) * kTilePages + i)
                    : call.next.stride_bytes != 0 ? page_at(call.next, call.next_tile * kTilePages + i)
                                                  : found.heads[i];
  }
  return found;
}

// The next tile is fetched once.
inline void forget_next(TilePages& pages) {
  for (std::size_t i = 0; i < kTilePages; ++i) pages.next[i] = pages.heads[i];
}

// What the rows of a block see of all positions.
struct Sight {
  std::int32_t first, last;          // some row sees
  std::int32_t all_from, all_until;  // every row sees
};

inline Sight sight_of(const std::int32_t* first_seen, const std::int32_t* last_seen, std::size_t num_rows) {
  Sight sight{first_seen[0], last_seen[0], first_seen[0], last_seen[0]};
  for (std::size_t r = 1; r < num_rows; ++r) {
    sight.first = first_seen[r] < sight.first ? first_seen[r] : sight.first;
    sight.last = last_seen[r] > sight.last ? last_seen[r] : sight.last;
    sight.all_from = first_seen[r] > sight.all_from ? first_seen[r] : sight.all_from;
    sight.all_until = last_seen[r] < sight.all_until ? last_seen[r] : sight.all_until;
  }
  return sight;
}

// What the int8 of a tile are scaled with, by token.
struct Scales {
  float of_keys[kTile];
  float of_values[kTile];
};

// The pairs of int8 of a tile as pairs of bf16, which hold them exactly: the heads of its pages one after the other.
// The next tile is fetched while scores are computed: keys are as many lines there as keys and values are here.
template <class A>
inline void unpack(const HeadLayout& layout, TilePages& pages, std::uint32_t* words, Scales& scales) {
  const std::size_t num_pairs = layout.scales_at / 2;  // a multiple of 16
  for (std::size_t page = 0; page < kTilePages; ++page) {
    const std::byte* head = pages.heads[page];
    std::uint32_t* out = words + page * num_pairs;
    for (std::size_t i = 0; i < num_pairs; i += kLanes) A::widen(head + 2 * i, out + i);
    for (std::size_t at = layout.scales_at; at < layout.num_bytes; at += kVectorBytes) fetch(pages.next[page] + at);
    const auto* scale = reinterpret_cast<const float*>(head + layout.scales_at);
    Lanes::load(scale).store(scales.of_keys + page * kPageLen);
    Lanes::load(scale + kPageLen).store(scales.of_values + page * kPageLen);
    pages.heads[page] = reinterpret_cast<const std::byte*>(out);
  }
}

// Tiles: how a tile's two products are made, of how many rows at most (tile_inl.h, amx_tiles_inl.h).
template <class Tiles>
struct Attend {
  using A = typename Tiles::Arithmetic;
  using Unit = typename A::Unit;
  static constexpr std::size_t kMaxRows = Tiles::kMaxRows;

  // One block of one tile; false where no row of it sees anything there.
  static bool run_block(const Call& call, TilePages& pages, const Scales* scales, std::size_t tile,
                        std::size_t first_row, std::size_t num_rows) {
    const HeadLayout& layout = *call.layout;
    const std::int32_t* first_seen = call.first_seen + first_row;
    const std::int32_t* last_seen = call.last_seen + first_row;
    const Sight sight = sight_of(first_seen, last_seen, num_rows);
    const auto start = static_cast<std::int32_t>(tile * kTile);
    constexpr auto kLength = static_cast<std::int32_t>(kTile);
    if (sight.last < start || sight.first >= start + kLength) return false;
    // Tokens of the tile that some row sees.
    const auto begin = static_cast<std::size_t>(sight.first > start ? sight.first - start : 0);
    const auto end = static_cast<std::size_t>(sight.last < start + kLength ? sight.last + 1 - start : kLength);

    alignas(64) float scores[kMaxRows * kTile];
    alignas(64) Unit shares[kMaxRows * kTile / A::kStep];
    alignas(64) float decay[kLanes];
    const std::size_t num_steps = layout.width / A::kStep;
    Tiles::score_all(num_rows, Tiles::row_at(call.units, first_row, num_steps), num_steps, pages, begin / kPageLen,
                     (end + kPageLen - 1) / kPageLen, scores);
    const State state = call.state.at(first_row, layout.padded_width);
    const bool is_masked = sight.all_from > start || sight.all_until < start + kLength - 1;
    softmax<A>({num_rows, first_seen, last_seen, state, is_masked, start, call.soft_cap,
                scales == nullptr ? nullptr : scales->of_keys, scales == nullptr ? nullptr : scales->of_values},
               scores, shares, decay);
    if (scales != nullptr) forget_next(pages);
    const std::size_t values_at = scales == nullptr ? layout.values_at : 2 * layout.values_at;
    Tiles::add_all(num_rows, {shares, &pages, values_at, layout.padded_width * 4, begin / A::kStep,
                              (end + A::kStep - 1) / A::kStep, decay, state.acc, layout.padded_width});
    return true;
  }

  static void run(const Call& call) {
    const std::size_t num_rows = call.row_end - call.row_begin;
    const std::size_t num_blocks = (num_rows + kMaxRows - 1) / kMaxRows;
    const bool is_packed = call.layout->type == KVType::kI8;
    Scales scales;
    for (std::size_t tile = call.tile_begin; tile < call.tile_end; ++tile) {
      TilePages pages = locate(call, tile);
      if constexpr (A::kStep == 2) {
        if (is_packed) unpack<A>(*call.layout, pages, call.unpacked, scales);
      }
      for (std::size_t block = 0; block < num_blocks; ++block) {
        const std::size_t begin = call.row_begin + num_rows * block / num_blocks;
        const std::size_t end = call.row_begin + num_rows * (block + 1) / num_blocks;
        if (!run_block(call, pages, is_packed ? &scales : nullptr, tile, begin, end - begin)) continue;
        forget_next(pages);
      }
    }
  }
};

// Lane by lane:  max' = max of both;  sum', acc' = theirs * 2^(their max - max') + left's * 2^(its max - max').
inline void fold(const State& from, const State& into, std::size_t num_rows, std::size_t padded_width) {
  for (std::size_t first = 0; first < num_rows; first += kLanes) {
    const std::size_t count = num_rows - first < kLanes ? num_rows - first : kLanes;
    float left[kLanes] = {};
    float right[kLanes] = {};
    for (std::size_t r = 0; r < count; ++r) {
      left[r] = into.max[first + r];
      right[r] = from.max[first + r];
    }
    const Lanes most = max(Lanes::load(right), Lanes::load(left));
    exp2(sub(Lanes::load(left), most)).store(left);
    exp2(sub(Lanes::load(right), most)).store(right);
    float most_of[kLanes];
    most.store(most_of);
    for (std::size_t r = 0; r < count; ++r) {
      const State a = into.at(first + r, padded_width);
      const State b = from.at(first + r, padded_width);
      const Lanes scale_a = Lanes::broadcast(left[r]);
      const Lanes scale_b = Lanes::broadcast(right[r]);
      *a.max = most_of[r];
      fma(Lanes::load(b.sum), scale_b, mul(Lanes::load(a.sum), scale_a)).store(a.sum);
      for (std::size_t i = 0; i < padded_width; i += kLanes) {
        fma(Lanes::load(b.acc + i), scale_b, mul(Lanes::load(a.acc + i), scale_a)).store(a.acc + i);
      }
    }
  }
}

// Lanes are added by halves: 16 -> 8 -> 4 -> 2 -> 1.
inline void finish(const Finish& work) {
  float sum[kLanes];
  Lanes::load(work.state.sum).store(sum);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  float out[kMaxWidth];
  // Adding zero makes every zero positive: whether a negative one came out of a sum can depend on hidden positions.
  for (std::size_t i = 0; i < work.width; ++i) out[i] = work.state.acc[i] / sum[0] + 0.0F;
  if (work.floats != nullptr) {
    for (std::size_t i = 0; i < work.width; ++i) work.floats[i] = out[i];
  }
  if (work.layout != nullptr) {
    operand::write_groups(*work.layout, work.row, work.first, out, work.width);
  }
}

// A level's functions: how it multiplies bf16, and what its registers hold.
template <class Bf16Arithmetic, int kMaxRows, int kAccumulators>
struct Level {
  static void load_query(const HeadLayout& layout, const void* query, void* units, std::size_t row) {
    if (layout.type == KVType::kF32) return F32::load_query(query, layout.width, static_cast<float*>(units) + row);
    Bf16Arithmetic::load_query(query, layout.width, static_cast<typename Bf16Arithmetic::Unit*>(units) + row);
  }

  static void attend(const Call& call) {
    if (call.layout->type == KVType::kF32) return Attend<Instances<F32, kMaxRows, kAccumulators>>::run(call);
    Attend<Instances<Bf16Arithmetic, kMaxRows, kAccumulators>>::run(call);
  }

  static Functions functions() { return {load_query, attend, fold, finish}; }
};

}  // namespace
}  // namespace trivium::attention
