// AVX2 and FMA, compiled with exactly those flags.
#include "ops/adapter/adapter_inl.h"
#include "simd/vec_avx2.h"

namespace trivium::adapter {

Kernel adapter_f32_avx2();
Kernel adapter_f32_avx2() { return {Isa::kAvx2, "adapter_f32_avx2", shrink<VecAvx2, 2>, expand<VecAvx2, 2>}; }

}  // namespace trivium::adapter
