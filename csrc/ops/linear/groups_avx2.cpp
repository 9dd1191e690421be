// Formats of plain groups; see linear_avx2.cpp.
#include "ops/linear/lanes_avx2.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avx2(FormatId id);
FormatKernels groups_avx2(FormatId id) { return group_kernels<Lanes2>(id); }

}  // namespace trivium::linear
