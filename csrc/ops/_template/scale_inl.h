// The algorithm, once, on any vector type. Internal linkage: included by ISA files only.
#pragma once

#include <cstddef>

namespace trivium::scale {
namespace {

template <class V>
void scale_vectors(float factor, const float* x, float* y, std::size_t size) {
  const V scale = V::broadcast(&factor);
  std::size_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) mul(scale, V::load(x + i)).store(y + i);
  for (; i < size; ++i) y[i] = factor * x[i];
}

}  // namespace
}  // namespace trivium::scale
