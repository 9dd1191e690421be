// Selection, and how a team divides a layer. Compiled without ISA flags.
#include "ops/attention/attention.h"

#include <cmath>
#include <numbers>

#include "ops/attention/member.h"

namespace trivium::attention {

#define TRIV_KERNEL(isa, function) Functions function();
#include "ops/attention/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr Kernel kKernels[] = {
#define TRIV_KERNEL(isa, function) {isa, #function, function},
#include "ops/attention/kernels.inc"
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

float query_factor(float scale, float soft_cap) {
  const double unit = soft_cap == 0.0F ? 1.0 : 2.0 / double{soft_cap};
  return static_cast<float>(double{scale} * unit * std::numbers::log2e);
}

std::size_t scratch_bytes(std::size_t width) { return Scratch(width, nullptr).num_bytes; }

void run(const Kernel& kernel, Work& work, const Args& args, Team& team, void* scratch) {
  // A pool that is busy for another caller gives a team of one.
  const bool is_alone = team.size() != work.members();
  Member member(kernel, work, args, is_alone, scratch);
  if (is_alone) {
    if (team.index() == 0) member.run(work.cuts().front(), work.cuts().back());
    return;
  }
  const auto index = static_cast<std::size_t>(team.index());
  member.run(work.cuts()[index], work.cuts()[index + 1]);
  if (work.splits().empty()) return;
  team.barrier();
  for (const Split& split : work.splits()) {
    const Team::Share rows = team.share(member.num_rows(split));
    if (rows.begin < rows.end) member.merge(split, rows.begin, rows.end);
  }
}

}  // namespace trivium::attention
