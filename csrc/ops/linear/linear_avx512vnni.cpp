// AVX-512 with VNNI and BF16. Here: floats and epilogues.
#include "ops/linear/finish_inl.h"
#include "ops/linear/lanes_avx512vnni.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avx512vnni(FormatId id, operand::Format left);
FormatKernels supers_avx512vnni(FormatId id);

namespace {

FormatKernels format(FormatId id, operand::Format left) {
  if (is_number(id)) return float_kernels<LanesVnni512>(id);
  return FormatId::kQ2K <= id && id <= FormatId::kQ6K ? supers_avx512vnni(id) : groups_avx512vnni(id, left);
}

}  // namespace

Kernels linear_avx512vnni();
Kernels linear_avx512vnni() { return {Isa::kAvx512Vnni, "linear_avx512vnni", format, finish<LanesVnni512>}; }

}  // namespace trivium::linear
