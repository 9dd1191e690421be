// Formats of plain groups; see linear_scalar.cpp.
#include "ops/linear/lanes.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_scalar(FormatId id);
FormatKernels groups_scalar(FormatId id) { return group_kernels<One>(id); }

}  // namespace trivium::linear
