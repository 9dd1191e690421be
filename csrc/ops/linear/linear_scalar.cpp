// One column at a time: the meaning of every format, and what runs where nothing stronger does. Here: floats and
// epilogues.
#include "ops/linear/finish_inl.h"
#include "ops/linear/lanes.h"
#include "ops/linear/tables_inl.h"

namespace trivium::linear {

FormatKernels groups_scalar(FormatId id, operand::Format left);
FormatKernels supers_scalar(FormatId id);

namespace {

FormatKernels format(FormatId id, operand::Format left) {
  if (is_number(id)) return float_kernels<One>(id);
  return FormatId::kQ2K <= id && id <= FormatId::kQ6K ? supers_scalar(id) : groups_scalar(id, left);
}

}  // namespace

Kernels linear_scalar();
Kernels linear_scalar() { return {Isa::kScalar, "linear_scalar", format, finish<One>}; }

}  // namespace trivium::linear
