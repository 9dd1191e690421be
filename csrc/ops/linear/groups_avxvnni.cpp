// Formats of plain groups; see linear_avxvnni.cpp.
#include "ops/linear/lanes_avxvnni.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avxvnni(FormatId id);
FormatKernels groups_avxvnni(FormatId id) { return group_kernels<LanesVnni256>(id); }

}  // namespace trivium::linear
