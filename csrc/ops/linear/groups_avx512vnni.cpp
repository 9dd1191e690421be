// Formats of plain groups; see linear_avx512vnni.cpp.
#include "ops/linear/lanes_avx512vnni.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avx512vnni(FormatId id, operand::Format left);
FormatKernels groups_avx512vnni(FormatId id, operand::Format left) { return group_kernels<LanesVnni512>(id, left); }

}  // namespace trivium::linear
