// One row: norm, rotation, rounding, storing. Included by the ISA files only; everything here has internal linkage.
//
// Plain loops that the compiler turns into each level's vectors, but for the sum of squares, whose order is fixed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/pages_inl.h"
#include "ops/norm/norm_inl.h"
#include "ops/rope_kv/rope_kv.h"

namespace trivium::rope_kv {
namespace {

inline void rotate(const float* __restrict x, const float* __restrict table, std::size_t half, std::size_t width,
                   float* __restrict out) {
  const float* cosines = table;
  const float* sines = table + half;
  for (std::size_t i = 0; i < half; ++i) {
    out[i] = x[i] * cosines[i] - x[half + i] * sines[i];
    out[half + i] = x[half + i] * cosines[i] + x[i] * sines[i];
  }
  for (std::size_t i = 2 * half; i < width; ++i) out[i] = x[i];
}

// Queries or keys of one row: how each head is normed and rotated.
template <class V>
struct Heads {
  const RowArgs& row;
  const float* first;   // head 0
  const float* weight;  // of the norm
  NormKind norm;        // none where there is no weight: queries may be normed and keys not
  float scale;          // of the norm over all heads

  Heads(const RowArgs& args, const float* heads, std::size_t count, const float* norm_weight)
      : row(args),
        first(heads),
        weight(norm_weight),
        norm(norm_weight == nullptr ? NormKind::kNone : args.args->norm),
        scale(1.0F) {
    if (norm == NormKind::kFull) {
      scale = trivium::norm::rms_scale<V>(heads, count * args.layout->width, args.args->eps);
    }
  }

  // Writes head `index` to `out` [D].
  void make(std::size_t index, float* __restrict out) const {
    const std::size_t width = row.layout->width;
    const float* x = first + index * width;
    float normed[attention::kMaxWidth];
    if (norm != NormKind::kNone) {
      const bool is_alone = norm == NormKind::kHead;
      const float factor = is_alone ? trivium::norm::rms_scale<V>(x, width, row.args->eps) : scale;
      const float* weights = is_alone ? weight : weight + index * width;
      for (std::size_t i = 0; i < width; ++i) normed[i] = x[i] * factor * weights[i];
      x = normed;
    }
    rotate(x, row.table, row.table == nullptr ? 0 : row.args->half, width, out);
  }
};

inline void write_query(const attention::HeadLayout& layout, const float* query, float factor, std::byte* out) {
  if (layout.type == attention::KVType::kF32) {
    auto* floats = reinterpret_cast<float*>(out);
    for (std::size_t i = 0; i < layout.width; ++i) floats[i] = query[i] * factor;
  } else {
    auto* units = reinterpret_cast<std::uint16_t*>(out);
    for (std::size_t i = 0; i < layout.width; ++i) units[i] = operand::bf16_of(query[i] * factor);
  }
}

template <class V>
void run_row(const RowArgs& row) {
  const attention::HeadLayout& layout = *row.layout;
  const std::size_t width = layout.width;
  const std::size_t num_kv_heads = row.args->store->num_heads;
  const std::size_t query_bytes = width * (layout.type == attention::KVType::kF32 ? 4 : 2);
  const float* keys = row.row + row.args->num_heads * width;
  const float* values = keys + num_kv_heads * width;
  float head[attention::kMaxWidth];
  if (row.q_begin < row.q_end) {
    const Heads<V> heads(row, row.row, row.args->num_heads, row.args->q_weight);
    for (std::size_t h = row.q_begin; h < row.q_end; ++h) {
      heads.make(h, head);
      write_query(layout, head, row.args->query_factor, row.queries + h * query_bytes);
    }
  }
  if (row.kv_begin < row.kv_end) {
    const Heads<V> heads(row, keys, num_kv_heads, row.args->k_weight);
    for (std::size_t g = row.kv_begin; g < row.kv_end; ++g) {
      heads.make(g, head);
      attention::write_head(layout, row.page + g * layout.num_bytes, row.slot, head, values + g * width);
    }
  }
}

}  // namespace
}  // namespace trivium::rope_kv
