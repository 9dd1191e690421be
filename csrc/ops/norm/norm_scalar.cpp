// One lane, for every processor.
#include "ops/norm/norm_inl.h"
#include "simd/vec.h"

namespace trivium::norm {

void norm_f32_scalar(const RowArgs& args);
void norm_f32_scalar(const RowArgs& args) { run_row<VecScalar>(args); }

}  // namespace trivium::norm
