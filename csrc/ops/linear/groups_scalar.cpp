// Formats of plain groups; see linear_scalar.cpp.
#include "ops/linear/lanes.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_scalar(FormatId id, operand::Format left);
FormatKernels groups_scalar(FormatId id, operand::Format left) { return group_kernels<One>(id, left); }

}  // namespace trivium::linear
