// AVX2 with VNNI on 256-bit vectors. Here: floats and epilogues.
#include "ops/linear/finish_inl.h"
#include "ops/linear/lanes_avxvnni.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_avxvnni(FormatId id, operand::Format left);
FormatKernels supers_avxvnni(FormatId id);

namespace {

FormatKernels format(FormatId id, operand::Format left) {
  if (is_number(id)) return float_kernels<LanesVnni256>(id);
  return FormatId::kQ2K <= id && id <= FormatId::kQ6K ? supers_avxvnni(id) : groups_avxvnni(id, left);
}

}  // namespace

Kernels linear_avxvnni();
Kernels linear_avxvnni() { return {Isa::kAvxVnni, "linear_avxvnni", format, finish<LanesVnni256>}; }

}  // namespace trivium::linear
