// AVX2 and FMA, compiled with exactly those flags.
#include "ops/rope_kv/rope_kv_inl.h"
#include "simd/vec_avx2.h"

namespace trivium::rope_kv {

void rope_kv_avx2(const RowArgs& row);
void rope_kv_avx2(const RowArgs& row) { run_row<VecAvx2>(row); }

}  // namespace trivium::rope_kv
