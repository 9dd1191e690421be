// AVX-512, compiled with exactly those flags.
#include "ops/gemm/gemm_inl.h"
#include "simd/vec_avx512.h"

namespace trivium::gemm {

void gemm_f32_avx512(const Block& block);
// 12 x 32 tile: 24 accumulators + 2 B + up to 6 A in flight = 32 registers.
// One to six rows take two panels: 4 to 24 chains.
void gemm_f32_avx512(const Block& block) { Cutting<VecAvx512, 12, 6, 2>::run(block); }

}  // namespace trivium::gemm
