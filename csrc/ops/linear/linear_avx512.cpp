// AVX-512 F, VL, BW and DQ. Here: floats and epilogues.
#include "ops/linear/finish_inl.h"
#include "ops/linear/lanes_avx512.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avx512(FormatId id, operand::Format left);
FormatKernels supers_avx512(FormatId id);

namespace {

FormatKernels format(FormatId id, operand::Format left) {
  if (is_number(id)) return float_kernels<LanesPlain512>(id);
  return FormatId::kQ2K <= id && id <= FormatId::kQ6K ? supers_avx512(id) : groups_avx512(id, left);
}

}  // namespace

Kernels linear_avx512();
Kernels linear_avx512() { return {Isa::kAvx512, "linear_avx512", format, finish<LanesPlain512>}; }

}  // namespace trivium::linear
