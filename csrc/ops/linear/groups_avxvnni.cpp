// Formats of plain groups; see linear_avxvnni.cpp.
#include "ops/linear/lanes_avxvnni.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avxvnni(FormatId id, operand::Format left);
FormatKernels groups_avxvnni(FormatId id, operand::Format left) { return group_kernels<LanesVnni256>(id, left); }

}  // namespace trivium::linear
