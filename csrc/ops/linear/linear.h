// Products with weights that stay in their own format:  y[m, n] = sum over k of x[m, k] * W[n, k], then an epilogue.
//
// The law ("same bits"): an output element is computed by one fixed sequence of operations on row m of the operand and
// column n of the weight, whatever M is, wherever the row stands, whichever tactic or thread runs it, on one ISA level.
//
//   kQ8 operand   per group g of the weight (16 or 32 values of k; 64 with kQ8Wide), ascending:
//                   dot = sum over k of unit[m, k] * stored[n, k], an exact 32-bit integer, starting at the operand's
//                         integer sum where the format has a zero point
//                   acc = fma(float(dot), scale_w[n, g] * scale_x[m, g], acc)
//                   acc = fma(min_w[n, g], sum_x[m, g], acc)             where the format has a minimum
//                 of i8_c: scale_w is left out in the sum, and acc * scale_w[n] is the result
//   kBf16         one chain of the level's bfloat16 dot products (or of its emulation), k ascending
//   kF32          one chain of fused multiply-adds, k ascending; weights in float16 are widened first
//
// Weights are packed in panels of kPanel columns (see format.h for every format's drawing): a panel is one contiguous
// stream of all of K. Columns beyond N in the last panel are zeros and are never stored.
//
// Letters: M rows, N columns, K depth (padded to whole blocks of the format, with zeros), R rows of an operand's tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/isa.h"
#include "base/team.h"
#include "ops/linear/format.h"
#include "ops/operand/operand.h"

namespace trivium::linear {

// One packed matrix [N, K].
struct Weight {
  const Format* format;
  const std::byte* panels;  // 64-byte aligned, ceil(N / kPanel) panels of panel_bytes(format, K)
  std::size_t num_cols;
};

enum class Activation : std::uint8_t { kSilu, kGeluTanh };

// What becomes of a product's rows.
//
//   kStore   out[m, n]  = v                                          v = (y + bias + delta) * scale, soft-capped
//   kAdd     out[m, n] += v                                          the residual
//   kGated   y[m, n]    = activation(v_gate) * v_up                  parts are (gate, up); written as an operand, as
//                                                                    rows out[m, n] of floats, or as both
enum class EpilogueKind : std::uint8_t { kStore, kAdd, kGated };

struct Epilogue {
  EpilogueKind kind;
  const float* bias;   // [all columns of all parts, in order], or null
  const float* delta;  // [M, delta_stride] likewise, added before everything else, or null: an adapter's product
  std::size_t delta_stride;
  float scale;     // 1: none
  float soft_cap;  // 0: none; else cap * tanh(v / cap)
  Activation activation;
  float* out;  // [M, out_stride]; kGated: or null
  std::size_t out_stride;
  const operand::Layout* operand_layout;  // kGated: null where no operand is wanted
  void* operand;                          // kGated
};

// A product of one operand with one to three matrices that follow each other in the output (q, k, v; gate, up). Parts
// may differ in format, but not in the operand format that they need; `sums[i]` says which of the operand's sums part
// i reads (ignored where its format needs none).
struct Product {
  std::span<const Weight> parts;
  std::span<const std::size_t> sums;
  operand::Layout layout;
  const void* operand;
  std::size_t num_rows;
  Epilogue epilogue;
};

struct Kernels;

// Every compiled set of kernels, strongest first, scalar last; and the strongest for a level.
std::span<const Kernels* const> all();
const Kernels& best(Isa isa);
Isa isa_of(const Kernels& kernels);

// Bytes of scratch that each member of a team needs for products of this depth with any format.
std::size_t scratch_bytes(std::size_t depth);

// How a member works a product off; all give the same bits. Chosen by the tuner, or by rule (kAuto).
//
//   kDirect     reads panels as they are packed
//   kUnpacked   unpacks a panel once and then reads bytes: where the level has kernels for that, and nine rows or more
//               share the panel; else like kDirect
enum class Tactic : std::uint8_t { kAuto, kDirect, kUnpacked };

// Throws std::invalid_argument unless the product is well-formed: formats and sums that fit the operand's layout, whole
// blocks in its depth, and for kGated two parts of equal width and, where one is wanted, an operand that holds it. For
// whoever builds products; `run` does not look again.
void check(const Product& product);

// Runs this member's share of a product: a run of (panel, row tile) pairs, so that shares differ by one tile at most.
// Ends without a barrier. `scratch` is the member's own, 64-byte aligned. The operand must not overlap what is written.
void run(const Kernels& kernels, const Product& product, Tactic tactic, Team& team, void* scratch);

// out [M, N] = x [M, K] * W^T with all threads: the rows are written as an operand first. Allocates; for tools and
// tests.
void multiply(const Kernels& kernels, const Weight& weight, std::size_t depth, const float* x, std::size_t num_rows,
              float* out);

// The operand that products with one matrix of this format need: its padded depth, and the sum it reads; the format's
// own, or `left`, which fits it.
operand::Layout layout_for(const Format& format, std::size_t depth);
operand::Layout layout_for(const Format& format, std::size_t depth, operand::Format left);

// Rows of a packed matrix as float32, [count, K] without padding: W[ids[i], :] exactly as the format defines them.
// For embeddings, and for the test of exactness.
void unpack_row(const Weight& weight, std::size_t depth, std::size_t row, float* out);

}  // namespace trivium::linear
