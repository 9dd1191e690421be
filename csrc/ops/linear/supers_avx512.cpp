// K-quants; see linear_avx512.cpp.
#include "ops/linear/lanes_avx512.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels supers_avx512(FormatId id);
FormatKernels supers_avx512(FormatId id) { return super_kernels<LanesPlain512>(id); }

}  // namespace trivium::linear
