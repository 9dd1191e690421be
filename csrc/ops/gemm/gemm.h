// Matrix products in float32 whose rows do not depend on each other.
//
//   C[m, n] = sum over k ascending of A[m, k] * B[k, n]
//
// The law: every output element is ONE chain of fused multiply-adds over k = 0, 1, 2, …, K-1 that starts at +0. So its
// bits depend on row m of A and column n of B alone: not on how many rows or columns there are, where they stand, how
// many threads run, or which instruction set is used. Error bound against exact arithmetic:
// |error| <= K * eps * sum over k of |A[m, k] * B[k, n]|, eps = 2^-24 (to first order).
//
// Letters: M rows of A, N columns of C, K depth, B batch. Sizes and strides are in elements. Threads: the functions
// below may be called from several threads at once. C must not overlap A or B; nothing needs alignment.
#pragma once

#include <cstddef>
#include <span>

#include "base/isa.h"
#include "base/span2d.h"

namespace trivium::gemm {

// Columns of one packed panel; see pack.h for the layout.
inline constexpr std::size_t kPanelWidth = 32;

// One block of work for one thread. Columns come in panels of kPanelWidth; all of a panel's columns are readable, of
// the last panel only those below num_cols are written.
//
//   B(k, n) = b[(n / kPanelWidth) * b_panel_stride + k * b_depth_stride + n % kPanelWidth]
struct Block {
  Span2d<const float> a;  // [M, K]
  const float* b;
  std::size_t b_panel_stride;
  std::size_t b_depth_stride;
  Span2d<float> c;  // [M, N]
  bool is_resumed;  // C holds the chains over smaller k, to go on with; otherwise they start at +0
};

using BlockFn = void (*)(const Block& block);

struct Kernel {
  Isa isa;
  const char* name;
  BlockFn run;
};

// Every compiled kernel, strongest first, scalar last.
std::span<const Kernel> all();

// The strongest kernel that needs no more than `isa`.
const Kernel& best(Isa isa);

// C[M, N] = A[M, K] * W[N, K]^T, with W packed by pack(). Splits over panels and blocks of rows, never over k.
void gemm_packed(const Kernel& kernel, Span2d<const float> a, const float* panels, Span2d<float> c);

// B matrices, each as in Span2d; matrix i begins at data + i * batch_stride (0 repeats one matrix).
template <class T>
struct Batch {
  Span2d<T> first;
  std::size_t batch_stride;

  Span2d<T> at(std::size_t i) const { return {first.data + i * batch_stride, first.rows, first.cols, first.stride}; }
};

// C[i] = A[i] * B[i]^T: A [M, K], B [N, K]. For attention scores: queries times keys.
void matmul_nt(const Kernel& kernel, std::size_t count, Batch<const float> a, Batch<const float> b, Batch<float> c);

// C[i] = A[i] * B[i]: A [M, K], B [K, N]. For attention output: weights times values.
void matmul_nn(const Kernel& kernel, std::size_t count, Batch<const float> a, Batch<const float> b, Batch<float> c);

}  // namespace trivium::gemm
