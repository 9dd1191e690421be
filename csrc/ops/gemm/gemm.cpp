// Selection, blocking and threads: everything above one block. Compiled without ISA flags.
#include "ops/gemm/gemm.h"

#include <algorithm>
#include <memory>
#include <new>

#include "base/parallel.h"
#include "ops/gemm/pack.h"

namespace trivium::gemm {

#define TRIV_KERNEL(isa, function) void function(const Block& block);
#include "ops/gemm/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr Kernel kKernels[] = {
#define TRIV_KERNEL(isa, function) {isa, #function, function},
#include "ops/gemm/kernels.inc"
#undef TRIV_KERNEL
};

// Below so many multiply-adds a second thread costs more than it brings (about 5 us of one core).
constexpr std::size_t kMinParallelWork = std::size_t{1} << 17;

// Rows and depth of A that pass under one panel before the next: 192 * 1024 floats stay in L2 beside 128 KiB of panel.
// A chain that is cut at 1024 goes on from C, so the cut changes no bit.
constexpr std::size_t kRowBlock = 192;
constexpr std::size_t kDepthBlock = 1024;
constexpr std::size_t kMinRowsToCut = 12;  // fewer rows are one tile: the panel is read once anyway

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Chunks of panels per task: about four tasks per thread even out uneven cores; even counts keep panel pairs together.
std::size_t panels_per_task(std::size_t panels, std::size_t work) {
  if (work < kMinParallelWork) return panels;
  const std::size_t tasks = static_cast<std::size_t>(num_threads()) * 4;
  return ceil_div(ceil_div(panels, tasks), 2) * 2;
}

// Per-thread scratch that only grows; 64-byte aligned.
float* scratch(std::size_t size) {
  struct Free {
    void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<float[], Free> memory;
  thread_local std::size_t capacity = 0;
  if (capacity < size) {
    memory.reset();
    capacity = 0;
    memory.reset(static_cast<float*>(::operator new[](size * sizeof(float), std::align_val_t{64})));
    capacity = size;
  }
  return memory.get();
}

}  // namespace

std::span<const Kernel> all() { return kKernels; }

const Kernel& best(Isa isa) {
  for (const Kernel& kernel : kKernels) {
    if (includes(isa, kernel.isa)) return kernel;
  }
  return kKernels[std::size(kKernels) - 1];
}

void gemm_packed(const Kernel& kernel, Span2d<const float> a, const float* panels, Span2d<float> c) {
  const std::size_t depth = a.cols;
  const std::size_t panel_size = depth * kPanelWidth;
  const std::size_t total = num_panels(c.cols);
  const std::size_t chunk = std::max<std::size_t>(1, panels_per_task(total, a.rows * c.cols * depth));
  const std::size_t chunks = ceil_div(total, chunk);
  const std::size_t depth_block = a.rows > kMinRowsToCut ? kDepthBlock : std::max<std::size_t>(depth, 1);
  const std::size_t row_blocks = ceil_div(a.rows, kRowBlock);
  // Task t is row block t / chunks and panel chunk t % chunks: neighbours in time share their rows.
  const auto run_tasks = [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::size_t row = t / chunks * kRowBlock;
      const std::size_t rows = std::min(kRowBlock, a.rows - row);
      const std::size_t panel = t % chunks * chunk;
      const std::size_t col = panel * kPanelWidth;
      const std::size_t cols = std::min(chunk * kPanelWidth, c.cols - col);
      const Span2d<float> out{c.row(row) + col, rows, cols, c.stride};
      // One pass at least, so that a depth of 0 writes zeros.
      for (std::size_t k = 0; k == 0 || k < depth; k += depth_block) {
        kernel.run({{a.row(row) + k, rows, std::min(depth_block, depth - k), a.stride},
                    panels + panel * panel_size + k * kPanelWidth,
                    panel_size,
                    kPanelWidth,
                    out,
                    k > 0});
      }
    }
  };
  parallel_for(row_blocks * chunks, 1, run_tasks);
}

void matmul_nt(const Kernel& kernel, std::size_t count, Batch<const float> a, Batch<const float> b, Batch<float> c) {
  // One task is one panel of one matrix: 32 rows of B are packed into scratch, then all rows of A pass under them.
  const std::size_t depth = a.first.cols;
  const std::size_t panels = num_panels(c.first.cols);
  const std::size_t panel_size = depth * kPanelWidth;
  const std::size_t work = count * a.first.rows * c.first.cols * depth;
  const auto run_tasks = [&](std::size_t begin, std::size_t end) {
    float* panel = scratch(panel_size);
    for (std::size_t t = begin; t < end; ++t) {
      const std::size_t i = t / panels;
      const std::size_t col = t % panels * kPanelWidth;
      pack_panel(b.at(i), col, panel);
      const Span2d<float> out = c.at(i);
      const std::size_t cols = std::min(kPanelWidth, out.cols - col);
      kernel.run({a.at(i), panel, panel_size, kPanelWidth, {out.data + col, out.rows, cols, out.stride}, false});
    }
  };
  const std::size_t tasks = count * panels;
  parallel_for(tasks, work < kMinParallelWork ? tasks : 1, run_tasks);
}

void matmul_nn(const Kernel& kernel, std::size_t count, Batch<const float> a, Batch<const float> b, Batch<float> c) {
  // Whole panels are read where they stand; columns past the last whole panel are copied into a zero-padded one.
  const std::size_t depth = a.first.cols;
  const std::size_t cols = c.first.cols;
  const std::size_t whole = cols / kPanelWidth * kPanelWidth;
  const std::size_t tail = cols - whole;
  const std::size_t work = count * a.first.rows * cols * depth;
  const auto run_tasks = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Span2d<const float> values = b.at(i);
      const Span2d<float> out = c.at(i);
      if (whole > 0) {
        kernel.run({a.at(i), values.data, kPanelWidth, values.stride, {out.data, out.rows, whole, out.stride}, false});
      }
      if (tail == 0) continue;
      float* panel = scratch(depth * kPanelWidth);
      for (std::size_t k = 0; k < depth; ++k) {
        const float* row = values.row(k) + whole;
        std::fill(std::copy(row, row + tail, panel + k * kPanelWidth), panel + (k + 1) * kPanelWidth, 0.0F);
      }
      kernel.run({a.at(i), panel, 0, kPanelWidth, {out.data + whole, out.rows, tail, out.stride}, false});
    }
  };
  parallel_for(count, work < kMinParallelWork ? count : 1, run_tasks);
}

}  // namespace trivium::gemm
