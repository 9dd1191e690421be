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
  std::byte* data;        // 64-byte aligned; zeroed when made

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

// What queries are multiplied with before they are rounded and stored, so that scores come out in the unit that exp2
// takes: scale * log2(e); with a soft cap, scale * 2 * log2(e) / soft_cap, the argument of tanh as exp2 takes it.
float query_factor(float scale, float soft_cap);

struct Functions;

struct Kernel {
  Isa isa;
  const char* name;
  Functions (*functions)();  // to be called where the level runs, nowhere else
};

// Every compiled kernel, strongest first, scalar last.
std::span<const Kernel> all();

// The strongest kernel that runs on `isa`.
const Kernel& best(Isa isa);

// Where attended rows go: `floats` [T, stride], an operand of depth H * D (padded), whose element h * D + d is element
// d of head h, or both; what is null is not written. With an operand, D must be a multiple of its group().
struct Output {
  float* floats;
  std::size_t stride;
  const operand::Layout* layout;
  void* operand;
};

// One layer.
struct Args {
  const Store* store;
  std::size_t layer;    // of the store
  const void* queries;  // [T, H, D]: float for kF32, bf16 otherwise; times query_factor
  float soft_cap;       // 0: none
  Output out;
};

class Work;  // who reads which pages together: plan.h

// Bytes of scratch that each member needs.
std::size_t scratch_bytes(std::size_t width);

// Runs this member's share of one layer. Holds a barrier of its own where the plan cuts a row's keys between members;
// ends without one. `scratch` is the member's own, 64-byte aligned.
//
// Error of an output element against exact arithmetic on the stored keys and values and the queries as given, to first
// order; V the greatest |v| of its column, A the greatest sum of |q k * scale| over D, n the number of keys,
// eps = 2^-24:
//   kF32            V * 2 * eps * ((D + 4) * A + n + 8 * soft_cap + 64)
//   kBf16, kI8      that, and V * 2^-8: shares are rounded to bf16
//
// Numbers that are not finite reach the rows that see them and, in a chunk, rows of the same request and block of rows
// before them; never another request.
void run(const Kernel& kernel, Work& work, const Args& args, Team& team, void* scratch);

}  // namespace trivium::attention
