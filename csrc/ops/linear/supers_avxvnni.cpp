// K-quants; see linear_avxvnni.cpp.
#include "ops/linear/lanes_avxvnni.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels supers_avxvnni(FormatId id);
FormatKernels supers_avxvnni(FormatId id) { return super_kernels<LanesVnni256>(id); }

}  // namespace trivium::linear
