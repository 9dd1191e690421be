// A matrix somewhere in memory: pointer, rows, columns, stride. Owns nothing, checks nothing.
#pragma once

#include <cstddef>

namespace trivium {

// Element (r, c) is data[r * stride + c]; stride is in elements and at least cols, or 0 to repeat one row.
template <class T>
struct Span2d {
  T* data;
  std::size_t rows;
  std::size_t cols;
  std::size_t stride;

  T* row(std::size_t r) const { return data + r * stride; }
};

}  // namespace trivium
