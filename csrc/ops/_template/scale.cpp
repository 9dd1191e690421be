// Selection: walks the list. Compiled without ISA flags.
#include "ops/_template/scale.h"

namespace trivium::scale {

#define TRIV_KERNEL(isa, function) void function(float factor, const float* x, float* y, std::size_t size);
#include "ops/_template/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr Kernel kKernels[] = {
#define TRIV_KERNEL(isa, function) {isa, #function, function},
#include "ops/_template/kernels.inc"
#undef TRIV_KERNEL
};

}  // namespace

std::span<const Kernel> all() { return kKernels; }

const Kernel& best(Isa isa) {
  for (const Kernel& kernel : kKernels) {
    if (includes(isa, kernel.isa)) return kernel;
  }
  return kKernels[std::size(kKernels) - 1];
}

}  // namespace trivium::scale
