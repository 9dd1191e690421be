// The packed weight: panels of 32 output columns, each one contiguous stream in the order the kernel reads it.
//
//   W [N, K] row-major                 panels [ceil(N / 32)][K][32]
//
//          k ->                        panel 0                 panel 1
//   n=0   a0 a1 a2 …                   k=0: a0 b0 c0 … (32)    k=0: rows 32 to 63
//   n=1   b0 b1 b2 …        =>         k=1: a1 b1 c1 … (32)    …
//   n=2   c0 c1 c2 …                   …
//
//   W[n, k] stands at ((n / 32) * K + k) * 32 + n % 32; columns past N are zero.
#pragma once

#include <cstddef>

#include "base/span2d.h"

namespace trivium::gemm {

std::size_t num_panels(std::size_t num_cols);

// Floats that the packed form of a weight [N, K] takes.
std::size_t packed_size(std::size_t num_cols, std::size_t depth);

// Packs W [N, K] into `panels` (packed_size floats), all threads.
void pack(Span2d<const float> weight, float* panels);

// Packs rows [first, first + 32) of W, as far as they exist, into one panel of K * 32 floats.
void pack_panel(Span2d<const float> weight, std::size_t first, float* panel);

}  // namespace trivium::gemm
