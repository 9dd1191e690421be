// AVX2 with FMA and F16C. Here: floats and epilogues.
#include "ops/linear/finish_inl.h"
#include "ops/linear/lanes_avx2.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avx2(FormatId id, operand::Format left);
FormatKernels supers_avx2(FormatId id);

namespace {

FormatKernels format(FormatId id, operand::Format left) {
  if (is_number(id)) return float_kernels<Lanes2>(id);
  return FormatId::kQ2K <= id && id <= FormatId::kQ6K ? supers_avx2(id) : groups_avx2(id, left);
}

}  // namespace

Kernels linear_avx2();
Kernels linear_avx2() { return {Isa::kAvx2, "linear_avx2", format, finish<Lanes2>}; }

}  // namespace trivium::linear
