// One lane: the kernel every other is compared with, and what runs where nothing stronger does.
#include "ops/rope_kv/rope_kv_inl.h"
#include "simd/vec.h"

namespace trivium::rope_kv {

void rope_kv_scalar(const RowArgs& row);
void rope_kv_scalar(const RowArgs& row) { run_row<VecScalar>(row); }

}  // namespace trivium::rope_kv
