// K-quants; see linear_scalar.cpp.
#include "ops/linear/lanes.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels supers_scalar(FormatId id);
FormatKernels supers_scalar(FormatId id) { return super_kernels<One>(id); }

}  // namespace trivium::linear
