// K-quants; see linear_avx2.cpp.
#include "ops/linear/lanes_avx2.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels supers_avx2(FormatId id);
FormatKernels supers_avx2(FormatId id) { return super_kernels<Lanes2>(id); }

}  // namespace trivium::linear
