#include "ops/gemm/pack.h"

#include <algorithm>

#include "base/parallel.h"
#include "ops/gemm/gemm.h"

namespace trivium::gemm {

std::size_t num_panels(std::size_t num_cols) { return (num_cols + kPanelWidth - 1) / kPanelWidth; }

std::size_t packed_size(std::size_t num_cols, std::size_t depth) { return num_panels(num_cols) * depth * kPanelWidth; }

void pack_panel(Span2d<const float> weight, std::size_t first, float* panel) {
  // Sixteen values of k at a time: 32 cache lines are read once each, and 16 * 128 bytes written stay in L1.
  constexpr std::size_t kStrip = 16;
  const std::size_t depth = weight.cols;
  const std::size_t cols = std::min(kPanelWidth, weight.rows - first);
  if (cols < kPanelWidth) std::fill(panel, panel + depth * kPanelWidth, 0.0F);
  for (std::size_t k0 = 0; k0 < depth; k0 += kStrip) {
    const std::size_t k1 = std::min(k0 + kStrip, depth);
    for (std::size_t n = 0; n < cols; ++n) {
      const float* row = weight.row(first + n);
      for (std::size_t k = k0; k < k1; ++k) panel[k * kPanelWidth + n] = row[k];
    }
  }
}

void pack(Span2d<const float> weight, float* panels) {
  const std::size_t panel_size = weight.cols * kPanelWidth;
  parallel_for(num_panels(weight.rows), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t p = begin; p < end; ++p) pack_panel(weight, p * kPanelWidth, panels + p * panel_size);
  });
}

}  // namespace trivium::gemm
