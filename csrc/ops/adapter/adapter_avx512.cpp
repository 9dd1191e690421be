// AVX-512, compiled with exactly those flags.
#include "ops/adapter/adapter_inl.h"
#include "simd/vec_avx512.h"

namespace trivium::adapter {

Kernel adapter_f32_avx512();
Kernel adapter_f32_avx512() { return {Isa::kAvx512, "adapter_f32_avx512", shrink<VecAvx512, 4>, expand<VecAvx512, 4>}; }

}  // namespace trivium::adapter
