// Residual sum, RMS norm and rounding to an operand, in one pass over a row.
//
//   sum[r] = a[t] + b'[t],  b' = b, or rms(b) * b_weight (with b_eps)      t = rows[r], or r
//   out[r] = rms(sum) * weight, or sum itself                  written as an operand, as floats, or both
//   rms(x) = x / sqrt(mean(x^2) + eps)                         Source: Zhang and Sennrich 2019, RMSNorm
//
// Rows never mix. The sum of squares has 32 partial sums, k mod 32, added in one fixed tree: the same bits on every
// level. Error bound of rms against exact arithmetic: (N / 32 + 8) * eps relative, eps = 2^-24 (to first order).
//
// `sum` may be the same memory as `a`; nothing else may overlap. Letters: N width of a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/isa.h"
#include "base/team.h"
#include "ops/operand/operand.h"

namespace trivium::norm {

struct Args {
  const float* a;            // [rows of the step, width]
  const float* b;            // likewise, or null
  const float* b_weight;     // [width], or null: b is added as it is
  const float* weight;       // [width], or null: no norm
  const std::int32_t* rows;  // [num_rows] which rows of a and b, or null: all in order
  std::size_t num_rows;      // rows of sum and out
  std::size_t width;
  float eps;
  float b_eps;
  float* sum;                     // [num_rows, width], or null
  float* floats;                  // [num_rows, width], or null
  const operand::Layout* layout;  // of the operand; its depth is at least `width`
  void* operand;                  // or null
};

// One row: pointers are at the row; `scratch` holds the operand's depth in floats.
struct RowArgs {
  const float* a;
  const float* b;
  const float* b_weight;
  const float* weight;
  std::size_t width;
  float eps;
  float b_eps;
  float* sum;
  float* floats;
  const operand::Layout* layout;
  operand::Row row;  // words is null where no operand is wanted
  float* scratch;
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

// Bytes of scratch that each member needs.
std::size_t scratch_bytes(std::size_t depth);

// Runs this member's share of the rows; ends without a barrier. `scratch` is the member's own, 64-byte aligned.
void run(const Kernel& kernel, const Args& args, Team& team, void* scratch);

}  // namespace trivium::norm
