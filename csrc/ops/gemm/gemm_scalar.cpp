// One lane: the kernel every other is compared with, and what runs where nothing stronger does.
//
// Without FMA instructions in the target flags each multiply-add is a call of the C library's fmaf, which uses the
// processor's instruction where there is one. Slow, and bit-equal to the vector kernels.
#include "ops/gemm/gemm_inl.h"
#include "simd/vec.h"

namespace trivium::gemm {

void gemm_f32_scalar(const Block& block);
// 2 x 4 tile: small, since a call keeps nothing in registers.
void gemm_f32_scalar(const Block& block) { Cutting<VecScalar, 2, 0, 4>::run(block); }

}  // namespace trivium::gemm
