// Selection, and the rows of a member. Compiled without ISA flags.
#include "ops/norm/norm.h"

#include <algorithm>

#include "base/prefetch.h"

namespace trivium::norm {

#define TRIV_KERNEL(isa, function) void function(const RowArgs& args);
#include "ops/norm/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr Kernel kKernels[] = {
#define TRIV_KERNEL(isa, function) {isa, #function, function},
#include "ops/norm/kernels.inc"
#undef TRIV_KERNEL
};

// So many rows ahead are fetched.
constexpr std::size_t kFetchAhead = 3;

template <class T>
T* at_row(T* matrix, std::size_t row, std::size_t width) {
  return matrix == nullptr ? nullptr : matrix + row * width;
}

// A member's rows. Rows of an operand's tile share cache lines, so members take whole tiles where there are few.
Team::Share share_of(const Args& args, const Team& team) {
  const operand::Tiles tiles{args.num_rows};
  if (args.operand == nullptr || args.num_rows == 0 || tiles.count() > static_cast<std::size_t>(team.size())) {
    return team.share(args.num_rows);
  }
  const Team::Share share = team.share(tiles.count());
  return {tiles.begin(share.begin), tiles.begin(share.end)};
}

}  // namespace

std::span<const Kernel> all() { return kKernels; }

const Kernel& best(Isa isa) {
  for (const Kernel& kernel : kKernels) {
    if (includes(isa, kernel.isa)) return kernel;
  }
  return kKernels[std::size(kKernels) - 1];
}

std::size_t scratch_bytes(std::size_t depth) { return sizeof(float) * depth; }

void run(const Kernel& kernel, const Args& args, Team& team, void* scratch) {
  const Team::Share share = share_of(args, team);
  const auto source = [&](std::size_t r) { return args.rows == nullptr ? r : static_cast<std::size_t>(args.rows[r]); };
  const std::size_t row_bytes = args.width * sizeof(float);
  std::size_t fetched = share.begin;
  for (std::size_t r = share.begin; r < share.end; ++r) {
    for (; fetched < std::min(r + kFetchAhead, share.end); ++fetched) {
      prefetch(args.a + source(fetched) * args.width, row_bytes);
      if (args.b != nullptr) prefetch(args.b + source(fetched) * args.width, row_bytes);
    }
    const std::size_t from = source(r);
    RowArgs row{};
    row.a = at_row(args.a, from, args.width);
    row.b = at_row(args.b, from, args.width);
    row.b_weight = args.b_weight;
    row.weight = args.weight;
    row.width = args.width;
    row.eps = args.eps;
    row.b_eps = args.b_eps;
    row.sum = at_row(args.sum, r, args.width);
    row.floats = at_row(args.floats, r, args.width);
    row.layout = args.layout;
    if (args.operand != nullptr) row.row = operand::row_at(*args.layout, args.operand, args.num_rows, r);
    row.scratch = static_cast<float*>(scratch);
    kernel.run(row);
  }
}

}  // namespace trivium::norm
