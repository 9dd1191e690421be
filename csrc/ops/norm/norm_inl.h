// One row of the norm on any vector type. Included by the ISA files only; everything here has internal linkage.
#pragma once

#include <cstddef>

#include "ops/norm/norm.h"
#include "ops/operand/operand_inl.h"

namespace trivium::norm {
namespace {

inline constexpr std::size_t kChains = 32;

// The sum of squares in kChains partial sums:  chain c adds x[c], x[c + 32], x[c + 64], …; then halves are added:
// 32 -> 16 -> 8 -> 4 -> 2 -> 1.
template <class V>
float sum_of_squares(const float* x, std::size_t width) {
  constexpr std::size_t kLanes = V::kLanes;
  constexpr std::size_t kVecs = kChains / kLanes;
  V acc[kVecs];
  for (std::size_t v = 0; v < kVecs; ++v) acc[v] = V::zero();
  std::size_t i = 0;
  for (; i + kChains <= width; i += kChains) {
    for (std::size_t v = 0; v < kVecs; ++v) {
      const V value = V::load(x + i + v * kLanes);
      acc[v] = fma(value, value, acc[v]);
    }
  }
  float chains[kChains];
  for (std::size_t v = 0; v < kVecs; ++v) acc[v].store(chains + v * kLanes);
  for (std::size_t c = 0; i + c < width; ++c) chains[c] = __builtin_fmaf(x[i + c], x[i + c], chains[c]);
  for (std::size_t half = kChains / 2; half > 0; half /= 2) {
    for (std::size_t c = 0; c < half; ++c) chains[c] += chains[c + half];
  }
  return chains[0];
}

template <class V>
float rms_scale(const float* x, std::size_t width, float eps) {
  return 1.0F / __builtin_sqrtf(sum_of_squares<V>(x, width) / static_cast<float>(width) + eps);
}

template <class V>
void run_row(const RowArgs& args) {
  const std::size_t width = args.width;
  float* x = args.scratch;
  if (args.b == nullptr) {
    for (std::size_t i = 0; i < width; ++i) x[i] = args.a[i];
  } else if (args.b_weight == nullptr) {
    for (std::size_t i = 0; i < width; ++i) x[i] = args.a[i] + args.b[i];
  } else {
    const float scale = rms_scale<V>(args.b, width, args.b_eps);
    for (std::size_t i = 0; i < width; ++i) x[i] = args.a[i] + args.b[i] * scale * args.b_weight[i];
  }
  if (args.sum != nullptr) {
    for (std::size_t i = 0; i < width; ++i) args.sum[i] = x[i];
  }
  if (args.weight != nullptr) {
    const float scale = rms_scale<V>(x, width, args.eps);
    for (std::size_t i = 0; i < width; ++i) x[i] = x[i] * scale * args.weight[i];
  }
  if (args.floats != nullptr) {
    for (std::size_t i = 0; i < width; ++i) args.floats[i] = x[i];
  }
  if (args.row.words != nullptr) {
    for (std::size_t i = width; i < args.layout->depth; ++i) x[i] = 0.0F;
    operand::write_groups(*args.layout, args.row, 0, x, args.layout->depth);
  }
}

}  // namespace
}  // namespace trivium::norm
