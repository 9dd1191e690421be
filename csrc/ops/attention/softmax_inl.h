// One step of the online softmax: scores of a tile become shares. Included by ISA files only.
//
//   max'  = max(max, greatest score)        decay = 2^(max - max')
//   share = 2^(score - max')                sum'  = sum * decay + shares, lane by lane: ((s0 + s1) + (s2 + s3))
//
// Source: Milakov and Gimelshein 2018, Online normalizer calculation for softmax. Scores come in powers of two, since
// queries were multiplied with log2(e); a hidden score is minus infinity, its share an exact zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/arithmetic.h"

namespace trivium::attention {
namespace {

// cap * tanh(x), with y = 2 * log2(e) * x given and log2(e) * cap as `cap`: tanh(x) = 1 - 2 / (1 + 2^y).
inline Lanes soft_capped(Lanes y, float cap) {
  const Lanes one = Lanes::broadcast(1.0F);
  const Lanes tanh = sub(one, div(Lanes::broadcast(2.0F), add(one, exp2(y))));
  return mul(tanh, Lanes::broadcast(cap));
}

// Bit i is set where position page_start + i is seen.
inline std::uint32_t seen_bits(std::int32_t first_seen, std::int32_t last_seen, std::int32_t page_start) {
  const std::int32_t begin = first_seen - page_start;
  const std::int32_t end = last_seen + 1 - page_start;
  const auto below = [](std::int32_t count) { return count <= 0 ? 0U : count >= 16 ? 0xFFFFU : (1U << count) - 1U; };
  return below(end) & ~below(begin);
}

// A block of at most kLanes rows of one tile.
struct Block {
  std::size_t num_rows;
  const std::int32_t* first_seen;  // [R]
  const std::int32_t* last_seen;   // [R]
  State state;
  bool is_masked;      // some row does not see the whole tile
  std::int32_t start;  // position of the tile
  float soft_cap;
  const float* key_scales;    // [kTile], or null
  const float* value_scales;  // [kTile], or null
};

inline constexpr float kLowest = -3.40282346638528859812e+38F;

// Scores as they enter the softmax, in place; returns each row's greatest.
inline void finish_scores(const Block& block, float* scores, float* greatest_of) {
  const bool is_changed = block.is_masked || block.soft_cap != 0.0F || block.key_scales != nullptr;
  for (std::size_t r = 0; r < block.num_rows; ++r) {
    float* row = scores + r * kTile;
    Lanes most = Lanes::broadcast(kLowest);
    for (std::size_t page = 0; page < kTilePages; ++page) {
      Lanes s = Lanes::load(row + page * kLanes);
      if (block.key_scales != nullptr) s = mul(s, Lanes::load(block.key_scales + page * kLanes));
      if (block.soft_cap != 0.0F) s = soft_capped(s, block.soft_cap);
      if (block.is_masked) {
        const std::int32_t start = block.start + static_cast<std::int32_t>(page * kPageLen);
        const std::uint32_t bits = seen_bits(block.first_seen[r], block.last_seen[r], start);
        s = keep(s, bits, Lanes::broadcast(-__builtin_inff()));
      }
      if (is_changed) s.store(row + page * kLanes);
      most = max(s, most);
    }
    greatest_of[r] = greatest(most);
  }
}

// What a share becomes before it meets its value: int8 values are scaled here; hidden ones stay exact zeros whatever
// their scale is.
inline Lanes scaled_share(const Block& block, std::size_t row, std::size_t page, Lanes share) {
  if (block.value_scales == nullptr) return share;
  const Lanes scaled = mul(share, Lanes::load(block.value_scales + page * kLanes));
  if (!block.is_masked) return scaled;
  const std::int32_t start = block.start + static_cast<std::int32_t>(page * kPageLen);
  return keep(scaled, seen_bits(block.first_seen[row], block.last_seen[row], start), Lanes::zero());
}

// Turns the block's scores [R][kTile] into shares [R][kTile / kStep units] and moves max and sum on; `decay` [kLanes]
// is what the outputs so far have to be multiplied with.
template <class A>
void softmax(const Block& block, float* scores, typename A::Unit* shares, float* decay) {
  float greatest_of[kLanes];
  Lanes::broadcast(kLowest).store(greatest_of);
  finish_scores(block, scores, greatest_of);
  const Lanes before = Lanes::load(block.state.max);
  const Lanes after = max(Lanes::load(greatest_of), before);
  after.store(block.state.max);  // rows past the block keep theirs: nothing was greater
  float max_of[kLanes];
  after.store(max_of);
  exp2(sub(before, after)).store(decay);
  constexpr std::size_t kHalfUnits = 2 * kLanes / A::kStep;
  for (std::size_t r = 0; r < block.num_rows; ++r) {
    const Lanes top = Lanes::broadcast(max_of[r]);
    const float* row = scores + r * kTile;
    Lanes share[kTilePages];
    for (std::size_t page = 0; page < kTilePages; ++page) share[page] = exp2(sub(Lanes::load(row + page * 16), top));
    const Lanes all = add(add(share[0], share[1]), add(share[2], share[3]));
    float* sum = block.state.sum + r * kLanes;
    fma(Lanes::load(sum), Lanes::broadcast(decay[r]), all).store(sum);
    for (std::size_t page = 0; page < kTilePages; ++page) share[page] = scaled_share(block, r, page, share[page]);
    A::store_shares(shares + 2 * r * kHalfUnits, share[0], share[1]);
    A::store_shares(shares + (2 * r + 1) * kHalfUnits, share[2], share[3]);
  }
}

}  // namespace
}  // namespace trivium::attention
