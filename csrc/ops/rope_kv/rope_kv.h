// From a product's rows to attention's operands: norm of queries and keys, rotation, storing of keys and values.
//
//   a row of qkv [T, (H + 2 G) * D]:   | q 0 … q H-1 | k 0 … k G-1 | v 0 … v G-1 |
//
//   q, k   x / sqrt(mean(x^2) + eps) * weight        over each head (Qwen 3, Gemma 3), over all heads (OLMo 2), or not
//   q, k   rotated by the row's table, in the half-split layout of Hugging Face checkpoints (Su et al. 2021, RoFormer):
//
//            element    0 ....... half ....... 2 * half ....... D
//            out        | a cos - b sin | b cos + a sin | as it was |      a, b: first and second half
//
//   q      times `query_factor`, rounded to what attention multiplies with -> queries [T, H, D]
//   k, v   into the slot of the row's position in its request's pages, rounded to the store's type
//
// Every operation is exact or rounds once, in one order: the same bits on every level, for any split of the work, in
// any batch.
//
// Letters: T tokens, B requests, H query heads, G KV heads, D head width. Sizes and strides in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/isa.h"
#include "base/team.h"
#include "ops/attention/attention.h"
#include "ops/attention/pages.h"

namespace trivium::rope_kv {

enum class NormKind : std::uint8_t { kNone, kHead, kFull };

struct Args {
  const float* qkv;
  std::size_t qkv_stride;
  std::size_t num_heads;  // H; G and D are the store's
  NormKind norm;
  const float* q_weight;  // [D] for kHead, [H * D] for kFull, or null: queries are not normed
  const float* k_weight;  // likewise of keys, [G * D] for kFull
  float eps;
  const float* table;  // [T, 2, half]: cosines, then sines; null: no rotation
  std::size_t half;    // at most D / 2
  float query_factor;  // attention::query_factor
  void* queries;       // [T, H, D]: float for kF32, bf16 otherwise
  const attention::Store* store;
  std::size_t layer;  // of the store
};

// A row's part: heads [q_begin, q_end) of the queries, [kv_begin, kv_end) of the keys and values.
struct RowArgs {
  const Args* args;
  const attention::HeadLayout* layout;
  const float* row;    // of qkv
  const float* table;  // [2, half] or null
  std::byte* queries;  // [H, D]
  std::byte* page;     // of the layer, head 0
  std::size_t slot;
  std::size_t q_begin, q_end;
  std::size_t kv_begin, kv_end;
};

using RowFn = void (*)(const RowArgs& args);

struct Kernel {
  Isa isa;
  const char* name;
  RowFn run;
};

// Every compiled kernel, strongest first, scalar last.
std::span<const Kernel> all();

// The strongest kernel that runs on `isa`.
const Kernel& best(Isa isa);

// Runs this member's share. Ends without a barrier: attention must not start before one.
void run(const Kernel& kernel, const attention::Rows& rows, const Args& args, Team& team);

// The rotations of a step's tokens.
//
//   out[t, 0 or 1, i] = cos or sin(float32(position * frequencies[variant of t's request, i])) * factor
//
// The angle is rounded to float32; its cosine and sine are computed in double and rounded once.
struct TableArgs {
  const float* frequencies;      // [variants, half]
  const std::int32_t* variants;  // [B], or null: every request uses row 0
  std::size_t half;
  float factor;  // on cosines and sines (1 but for YaRN and LongRoPE)
  float* out;    // [T, 2, half]
};

// Fills this member's share of the table; ends without a barrier.
void fill_table(const attention::Rows& rows, const TableArgs& args, Team& team);

}  // namespace trivium::rope_kv
