// Both stages on any vector type. Internal linkage: included by ISA files only.
//
// kRows rows at a time share what is loaded of A and B.
//
//   shrink   kRows x 4 chains                + 1 A + 1 x       18 of 32 registers at 4 rows, 10 of 16 at 2
//   expand   kRows x kColumnVecs of columns  + 4 B + 1 h       21 of 32 registers at 4 rows, 13 of 16 at 2
#pragma once

#include <cstddef>

#include "ops/adapter/kernel.h"
#include "simd/repeat.h"

namespace trivium::adapter {
namespace {

constexpr int kChains = 4;
constexpr int kColumnVecs = 4;

// hidden of kRows rows, ranks [lane, lane + V::kLanes) of the block.
template <class V, int kRows>
void shrink_lanes(const ShrinkArgs& t, std::size_t first, std::size_t lane) {
  const float* x[kRows];
  V chains[kRows][kChains];
  repeat<kRows>([&](auto r) TRIV_UNROLLED {
    x[r] = t.x + t.rows[first + static_cast<std::size_t>(r)] * t.depth;
    repeat<kChains>([&](auto c) TRIV_UNROLLED { chains[r][c] = V::zero(); });
  });
  const float* a = t.a + lane;
  std::size_t k = 0;
  for (; k + kChains <= t.depth; k += kChains) {
    repeat<kChains>([&](auto c) TRIV_UNROLLED {
      const V w = V::load(a);
      repeat<kRows>([&](auto r) TRIV_UNROLLED { chains[r][c] = fma(w, V::broadcast(x[r] + k + c), chains[r][c]); });
      a += t.a_stride;
    });
  }
  repeat<kChains - 1>([&](auto c) TRIV_UNROLLED {
    if (k + c < t.depth) {
      const V w = V::load(a);
      repeat<kRows>([&](auto r) TRIV_UNROLLED { chains[r][c] = fma(w, V::broadcast(x[r] + k + c), chains[r][c]); });
      a += t.a_stride;
    }
  });
  repeat<kRows>([&](auto r) TRIV_UNROLLED {
    float* hidden = t.hidden + (first + static_cast<std::size_t>(r)) * t.hidden_stride + lane;
    add(add(chains[r][0], chains[r][2]), add(chains[r][1], chains[r][3])).store(hidden);
  });
}

// out of kRows rows, columns [col, col + kVecs * V::kLanes).
template <class V, int kRows, int kVecs>
void expand_columns(const ExpandArgs& t, std::size_t first, std::size_t col) {
  constexpr std::size_t kLanes = V::kLanes;
  V sums[kRows][kVecs];
  repeat<kRows>([&](auto r) TRIV_UNROLLED { repeat<kVecs>([&](auto v) TRIV_UNROLLED { sums[r][v] = V::zero(); }); });
  const float* b = t.b + col;
  const float* hidden = t.hidden + first * t.hidden_stride;
  for (std::size_t j = 0; j < t.rank; ++j, b += t.b_stride, ++hidden) {
    V w[kVecs];
    repeat<kVecs>([&](auto v) TRIV_UNROLLED { w[v] = V::load(b + static_cast<std::size_t>(v) * kLanes); });
    repeat<kRows>([&](auto r) TRIV_UNROLLED {
      const V h = V::broadcast(hidden + static_cast<std::size_t>(r) * t.hidden_stride);
      repeat<kVecs>([&](auto v) TRIV_UNROLLED { sums[r][v] = fma(w[v], h, sums[r][v]); });
    });
  }
  const V scale = V::broadcast(&t.scale);
  repeat<kRows>([&](auto r) TRIV_UNROLLED {
    float* out = t.out + t.rows[first + static_cast<std::size_t>(r)] * t.out_stride + col;
    repeat<kVecs>([&](auto v)
                      TRIV_UNROLLED { mul(scale, sums[r][v]).store(out + static_cast<std::size_t>(v) * kLanes); });
  });
}

// The columns that fill no vector, one by one: the same operations.
inline void expand_rest(const ExpandArgs& t, std::size_t first, std::size_t num_rows, std::size_t col) {
  for (std::size_t r = first; r < first + num_rows; ++r) {
    const float* hidden = t.hidden + r * t.hidden_stride;
    for (std::size_t n = col; n < t.num_cols; ++n) {
      float sum = 0.0F;
      for (std::size_t j = 0; j < t.rank; ++j) sum = __builtin_fmaf(t.b[j * t.b_stride + n], hidden[j], sum);
      t.out[t.rows[r] * t.out_stride + n] = t.scale * sum;
    }
  }
}

template <class V, int kRows>
void expand_rows(const ExpandArgs& t, std::size_t first) {
  constexpr std::size_t kLanes = V::kLanes;
  std::size_t col = 0;
  for (; col + kColumnVecs * kLanes <= t.num_cols; col += kColumnVecs * kLanes) {
    expand_columns<V, kRows, kColumnVecs>(t, first, col);
  }
  for (; col + kLanes <= t.num_cols; col += kLanes) expand_columns<V, kRows, 1>(t, first, col);
  expand_rest(t, first, kRows, col);
}

template <class V, int kRows>
void shrink(const ShrinkArgs& t) {
  for (std::size_t lane = 0; lane < kRankBlock; lane += V::kLanes) {
    std::size_t first = 0;
    for (; first + kRows <= t.num_rows; first += kRows) shrink_lanes<V, kRows>(t, first, lane);
    for (; first < t.num_rows; ++first) shrink_lanes<V, 1>(t, first, lane);
  }
}

template <class V, int kRows>
void expand(const ExpandArgs& t) {
  std::size_t first = 0;
  for (; first + kRows <= t.num_rows; first += kRows) expand_rows<V, kRows>(t, first);
  for (; first < t.num_rows; ++first) expand_rows<V, 1>(t, first);
}

}  // namespace
}  // namespace trivium::adapter
