// AVX-512, compiled with exactly those flags.
#include "ops/rope_kv/rope_kv_inl.h"
#include "simd/vec_avx512.h"

namespace trivium::rope_kv {

void rope_kv_avx512(const RowArgs& row);
void rope_kv_avx512(const RowArgs& row) { run_row<VecAvx512>(row); }

}  // namespace trivium::rope_kv
