// Selection, transposing, and how members share rows, ranks and columns. Compiled without ISA flags.
#include "ops/adapter/adapter.h"

#include <algorithm>

namespace trivium::adapter {

#define TRIV_KERNEL(isa, function) Kernel function();
#include "ops/adapter/kernels.inc"
#undef TRIV_KERNEL

namespace {

// Columns of an item of `expand`: what a row of B brings into L1 for all rows of a group.
constexpr std::size_t kColumnBlock = 256;

constexpr float kNothing = -0.0F;

// fn(group, begin, end) for each group that has rows among order[first, last).
template <class Fn>
void each_group(std::span<const Group> groups, std::size_t first, std::size_t last, Fn&& fn) {
  for (const Group& group : groups) {
    const std::size_t begin = std::max(first, group.begin);
    const std::size_t end = std::min(last, group.end);
    if (begin < end) fn(group, begin, end);
  }
}

// Items are (block, row) pairs, block by block, so that a member reads a block of A or B once for many rows:
//
//   blocks x rows       b0m0 b0m1 b0m2 | b1m0 b1m1 b1m2 | …
//   shares of two       `------ 0 ----------´ `---- 1 ---- …
//
// fn(block, first row, last row) for each run of this member's share.
template <class Fn>
void each_run(Team& team, std::size_t num_blocks, std::size_t num_rows, Fn&& fn) {
  if (num_rows == 0) return;
  Team::Share items = team.share(num_blocks * num_rows);
  while (items.begin < items.end) {
    const std::size_t block = items.begin / num_rows;
    const std::size_t first = items.begin % num_rows;
    const std::size_t last = std::min(num_rows, first + items.end - items.begin);
    fn(block, first, last);
    items.begin += last - first;
  }
}

void run_shrink(const Kernel& kernel, const Args& args, Team& team) {
  const std::size_t blocks = args.max_rank / kRankBlock;
  const std::size_t stride = args.sites.size() * args.max_rank;
  each_run(team, args.sites.size() * blocks, args.order.size(),
           [&](std::size_t item, std::size_t first, std::size_t last) {
             const std::size_t site = item / blocks;
             const std::size_t rank = item % blocks * kRankBlock;
             each_group(args.groups, first, last, [&](const Group& group, std::size_t begin, std::size_t end) {
               if (group.factors == nullptr) return;
               const Factors& factors = group.factors[args.sites[site].product];
               if (rank >= factors.rank) return;
               kernel.shrink({factors.a.data() + rank, padded_rank(factors.rank), args.depth, args.x,
                              args.order.data() + begin, end - begin,
                              args.hidden + begin * stride + site * args.max_rank + rank, stride});
             });
           });
}

// Which columns of which site, counted over all columns of the output.
struct Columns {
  std::size_t site;
  std::size_t first;      // of the site
  std::size_t first_out;  // of the output
  std::size_t count;
};

std::size_t num_column_blocks(std::span<const Site> sites) {
  std::size_t count = 0;
  for (const Site& site : sites) count += (site.width + kColumnBlock - 1) / kColumnBlock;
  return count;
}

Columns columns_of(std::span<const Site> sites, std::size_t block) {
  std::size_t site = 0;
  std::size_t first_out = 0;
  while (block >= num_column_blocks(sites.subspan(site, 1))) {
    block -= num_column_blocks(sites.subspan(site, 1));
    first_out += sites[site].width;
    ++site;
  }
  const std::size_t first = block * kColumnBlock;
  return {site, first, first_out + first, std::min(kColumnBlock, sites[site].width - first)};
}

void run_expand(const Kernel& kernel, const Args& args, Team& team) {
  const std::size_t hidden_stride = args.sites.size() * args.max_rank;
  std::size_t out_stride = 0;
  for (const Site& site : args.sites) out_stride += site.width;
  const std::size_t blocks = num_column_blocks(args.sites);
  each_run(team, blocks, args.order.size(), [&](std::size_t block, std::size_t first, std::size_t last) {
    const Columns columns = columns_of(args.sites, block);
    const Site& site = args.sites[columns.site];
    float* out = args.out + columns.first_out;
    each_group(args.groups, first, last, [&](const Group& group, std::size_t begin, std::size_t end) {
      const Factors* factors = group.factors == nullptr ? nullptr : group.factors + site.product;
      if (factors == nullptr || factors->rank == 0) {
        for (std::size_t i = begin; i < end; ++i)
          std::fill_n(out + args.order[i] * out_stride, columns.count, kNothing);
        return;
      }
      kernel.expand({factors->b.data() + columns.first, site.width, factors->rank, factors->scale,
                     args.hidden + begin * hidden_stride + columns.site * args.max_rank, hidden_stride,
                     args.order.data() + begin, end - begin, columns.count, out, out_stride});
    });
  });
}

struct List {
  std::vector<Kernel> kernels;
  List() {
#define TRIV_KERNEL(isa, function) kernels.push_back(function());
#include "ops/adapter/kernels.inc"
#undef TRIV_KERNEL
  }
};

}  // namespace

std::span<const Kernel> all() {
  static const List made;
  return made.kernels;
}

const Kernel& best(Isa isa) {
  for (const Kernel& kernel : all()) {
    if (includes(isa, kernel.isa)) return kernel;
  }
  return all().back();
}

Factors make_factors(const float* a, const float* b, std::size_t rank, std::size_t depth, std::size_t width,
                     float scale) {
  const std::size_t padded = padded_rank(rank);
  Factors made{std::vector<float>(depth * padded, 0.0F), std::vector<float>(rank * width), rank, scale};
  for (std::size_t j = 0; j < rank; ++j) {
    for (std::size_t k = 0; k < depth; ++k) made.a[k * padded + j] = a[j * depth + k];
  }
  for (std::size_t n = 0; n < width; ++n) {
    for (std::size_t j = 0; j < rank; ++j) made.b[j * width + n] = b[n * rank + j];
  }
  return made;
}

void run(const Kernel& kernel, const Args& args, Team& team) {
  run_shrink(kernel, args, team);
  team.barrier();
  run_expand(kernel, args, team);
}

}  // namespace trivium::adapter
