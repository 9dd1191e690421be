// AVX2 and FMA, compiled with exactly those flags.
#include "ops/norm/norm_inl.h"
#include "simd/vec_avx2.h"

namespace trivium::norm {

void norm_f32_avx2(const RowArgs& args);
void norm_f32_avx2(const RowArgs& args) { run_row<VecAvx2>(args); }

}  // namespace trivium::norm
