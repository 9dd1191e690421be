// AVX-512, compiled with exactly those flags.
#include "ops/norm/norm_inl.h"
#include "simd/vec_avx512.h"

namespace trivium::norm {

void norm_f32_avx512(const RowArgs& args);
void norm_f32_avx512(const RowArgs& args) { run_row<VecAvx512>(args); }

}  // namespace trivium::norm
