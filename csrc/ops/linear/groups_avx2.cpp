// Formats of plain groups; see linear_avx2.cpp.
#include "ops/linear/lanes_avx2.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avx2(FormatId id, operand::Format left);
FormatKernels groups_avx2(FormatId id, operand::Format left) { return group_kernels<Lanes2>(id, left); }

}  // namespace trivium::linear
