// AVX2 and FMA, compiled with exactly those flags.
#include "ops/gemm/gemm_inl.h"
#include "simd/vec_avx2.h"

namespace trivium::gemm {

void gemm_f32_avx2(const Block& block);
// 3 x 32 tile: 12 accumulators + 1 A; B comes from memory operands or the remaining 3 of 16 registers.
// One row takes two panels: 8 chains hide the 4-cycle latency of two multiply-adds per cycle.
void gemm_f32_avx2(const Block& block) { Cutting<VecAvx2, 3, 1, 4>::run(block); }

}  // namespace trivium::gemm
