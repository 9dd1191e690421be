// K-quants; see linear_avx512vnni.cpp.
#include "ops/linear/lanes_avx512vnni.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels supers_avx512vnni(FormatId id);
FormatKernels supers_avx512vnni(FormatId id) { return super_kernels<LanesVnni512>(id); }

}  // namespace trivium::linear
