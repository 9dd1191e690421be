// One lane: runs everywhere, and is what the others are compared with.
#include "ops/adapter/adapter_inl.h"
#include "simd/vec.h"

namespace trivium::adapter {

Kernel adapter_f32_scalar();
Kernel adapter_f32_scalar() { return {Isa::kScalar, "adapter_f32_scalar", shrink<VecScalar, 1>, expand<VecScalar, 1>}; }

}  // namespace trivium::adapter
