// What low-rank adapters add to products:  out[m, n] = scale * sum over j of B[n, j] * h[m, j],  h = x A^T.
//
// Every row has an adapter of its own, or none. Products that read the same x (q, k, v; gate, up) are one call: their
// columns lie side by side, and each has factors of its own, or none that an adapter leaves alone.
//
//   x [M, K] ── A of the row's adapter ──► hidden [M, products * max_rank] ── B, scale ──► out [M, all columns]
//               (shrink)                    a barrier of the team between    (expand)
//
// The law ("same bits"), on every level alike, whatever other rows there are:
//
//   h[j]   = (c[0] + c[2]) + (c[1] + c[3]),   c[i] one chain of fused multiply-adds over k = i, i + 4, i + 8, …
//   out[n] = scale * one chain of fused multiply-adds over j ascending
//
// Elements that no adapter adds to are -0, not 0: it is the number that added to any other, zeros of both signs
// included, gives that other. So a row without an adapter has the bits of a product without delta.
//
// Storage is float32, whatever the adapter's file holds. Error of out[n] against real numbers: at most (K / 4 + r + 5)
// * 2^-24 * scale * sum over j, k of |B[n, j]| |A[j, k]| |x[k]|.
//
// Letters: M rows, K depth, N columns of one product, r rank of an adapter's factors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/isa.h"
#include "base/team.h"
#include "ops/adapter/kernel.h"

namespace trivium::adapter {

constexpr std::size_t padded_rank(std::size_t rank) { return (rank + kRankBlock - 1) / kRankBlock * kRankBlock; }

// An adapter's two matrices for one product, transposed, so that vectors run over outputs. Empty: it leaves the product
// alone.
struct Factors {
  std::vector<float> a;  // [K][padded_rank(r)]
  std::vector<float> b;  // [r][N]
  std::size_t rank = 0;
  float scale = 0.0F;
};

// Transposes and pads A [r, K] and B [N, r], row-major.
Factors make_factors(const float* a, const float* b, std::size_t rank, std::size_t depth, std::size_t width,
                     float scale);

// Rows order[begin, end) use one adapter.
struct Group {
  const Factors* factors;  // of every product that there is; null: no adapter
  std::size_t begin;
  std::size_t end;
};

// One of the products that a call adds to.
struct Site {
  std::size_t product;  // index into a group's factors
  std::size_t width;    // N
};

struct Args {
  std::span<const Site> sites;
  std::size_t depth;  // K
  // [M] every row once, so that each group is a run; the groups cover it in order.
  std::span<const std::uint32_t> order;
  std::span<const Group> groups;
  std::size_t max_rank;  // padded; of all factors
  const float* x;        // [M, K]
  float* hidden;         // [M, sites * max_rank], shared by all members
  float* out;            // [M, sum of the sites' widths]; must not overlap x
};

// Every compiled kernel, strongest first, scalar last; and the strongest that needs no more than `isa`.
std::span<const Kernel> all();
const Kernel& best(Isa isa);

// Runs this member's share. Ends without a barrier; has one inside.
void run(const Kernel& kernel, const Args& args, Team& team);

}  // namespace trivium::adapter
