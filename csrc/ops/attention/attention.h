// Attention over keys and values in pages.
//
//   out[t, h] = sum over j of softmax_j(cap(q[t, h] . k[j, g] * scale)) * v[j, g],   g = h / (H / G),
//   over the positions p - window < j <= p of the row's own request, p the row's position
//
// The law ("same bits"): a row's result depends on its query, its position and its request's keys alone. Keys are taken
// in tiles of kTile positions, aligned to multiples of kTile; tiles are grouped in segments aligned to multiples of
// kSegment. Within a segment an online softmax runs over the tiles from left to right, from a fresh state; segments
// are merged from left to right. Decode, prefill, verification, another neighbour, another thread: the same operations
// in the same order. A hidden position (past p, before the window, past the page table) contributes an exact zero.
// So rows that share pages may share their loads, and segments of one row may be computed by several members.
//
// Letters: T tokens, B requests, H query heads, G KV heads, D head width (even, at most kMaxWidth).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/isa.h"
#include "base/team.h"
#include "ops/operand/operand.h"

namespace trivium::attention {

inline constexpr std::size_t kPageLen = 16;   // tokens per page; a token at position p is in slot p % 16
inline constexpr std::size_t kTile = 64;      // positions per softmax update
inline constexpr std::size_t kSegment = 256;  // positions per partial result
inline constexpr std::size_t kMaxWidth = 512;

// How keys and values are stored. kBf16 is the default; kF32 serves float32 checkpoints; kI8 has one scale per token
// and KV head.
enum class KVType : std::uint8_t { kBf16, kF32, kI8 };

// One KV group's memory: [layers of the group][pages][G] heads, each head's keys then values, tiled (pages.h draws
// them).
struct Store {
  KVType type;
  std::size_t num_layers;
  std::size_t num_pages;
  std::size_t num_heads;  // G
  std::size_t width;      // D
  std::byte* data;        // zeroed when made: every byte is finite

  std::size_t head_bytes() const;  // keys and values of one head of one page
  std::size_t num_bytes() const;
};

// What every layer of a step shares: who runs how many tokens, and in which pages their keys lie.
struct Rows {
  const std::int32_t* starts;      // [B + 1]
  const std::int32_t* positions;   // [T]
  const std::int32_t* kv_lens;     // [B]
  const std::int32_t* page_table;  // [B, pages_per_request], -1 where a page is not held
  std::size_t num_requests;
  std::size_t pages_per_request;
};

}  // namespace trivium::attention
