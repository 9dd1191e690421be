// Formats of plain groups; see linear_avx512.cpp.
#include "ops/linear/lanes_avx512.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avx512(FormatId id, operand::Format left);
FormatKernels groups_avx512(FormatId id, operand::Format left) { return group_kernels<LanesPlain512>(id, left); }

}  // namespace trivium::linear
