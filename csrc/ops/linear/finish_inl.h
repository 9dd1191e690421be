// Epilogues: what becomes of a block of results that lies in L1. Internal linkage: included by ISA files only.
//
// Element by element, so that no row or column changes another's bits. Columns past num_cols of the last panel are
// zeros; they are computed like all others, never stored, and written as zeros into operands.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/linear/activation_inl.h"
#include "ops/linear/kernels.h"
#include "ops/operand/operand_inl.h"

namespace trivium::linear {
namespace {

// The panel's part of an array of columns: in place, or copied and padded with zeros where the panel is not full.
inline const float* padded_columns(const float* array, std::size_t num_cols, float* room) {
  if (num_cols == kPanel) return array;
  for (std::size_t n = 0; n < kPanel; ++n) room[n] = n < num_cols ? array[n] : 0.0F;
  return room;
}

// v = (y + delta + bias) * scale, soft-capped; `first_col` counts over all parts.
template <class L>
void adjust(const FinishArgs& args, float* y, std::size_t first_col) {
  const Epilogue& epilogue = *args.epilogue;
  const bool is_scaled = epilogue.scale != 1.0F;
  const bool is_capped = epilogue.soft_cap != 0.0F;
  if (epilogue.bias == nullptr && epilogue.delta == nullptr && !is_scaled && !is_capped) return;
  float bias_room[kPanel];
  float delta_room[kPanel];
  const float* bias = nullptr;
  if (epilogue.bias != nullptr) bias = padded_columns(epilogue.bias + first_col, args.num_cols, bias_room);
  for (std::size_t r = 0; r < args.num_rows; ++r, y += kPanel) {
    const float* delta = nullptr;
    if (epilogue.delta != nullptr) {
      delta = padded_columns(epilogue.delta + (args.first_row + r) * epilogue.delta_stride + first_col, args.num_cols,
                             delta_room);
    }
    for (std::size_t n = 0; n < kPanel; n += L::kCols) {
      typename L::Floats value = L::load(y + n);
      if (delta != nullptr) value = L::add(value, L::load(delta + n));
      if (bias != nullptr) value = L::add(value, L::load(bias + n));
      if (is_scaled) value = L::mul(value, L::splat(epilogue.scale));
      if (is_capped) {
        const typename L::Floats cap = L::splat(epilogue.soft_cap);
        value = L::mul(cap, tanh_of<L>(L::div(value, cap)));
      }
      L::store(value, y + n);
    }
  }
}

template <class L, bool kAdds>
void store_rows(const FinishArgs& args) {
  const float* y = args.y;
  float* out = args.epilogue->out + args.first_row * args.epilogue->out_stride + args.first_col;
  for (std::size_t r = 0; r < args.num_rows; ++r, y += kPanel, out += args.epilogue->out_stride) {
    std::size_t n = 0;
    for (; n + L::kCols <= args.num_cols; n += L::kCols) {
      typename L::Floats value = L::load(y + n);
      if constexpr (kAdds) value = L::add(L::load(out + n), value);
      L::store(value, out + n);
    }
    for (; n < args.num_cols; ++n) out[n] = kAdds ? out[n] + y[n] : y[n];
  }
}

// The rows of one panel, or of the two that a wide group spans, as groups of an operand, and the padding behind them.
inline void write_operand(const FinishArgs& args) {
  const operand::Layout& layout = *args.epilogue->operand_layout;
  const std::size_t group = layout.group();
  operand::Row row = operand::row_at(layout, args.epilogue->operand, args.total_rows, args.first_row);
  const std::size_t first = args.first_col / group * group;
  const std::size_t end = args.first_col + kPanel + args.num_pad;
  const float zeros[operand::kWideGroup] = {};
  for (std::size_t r = 0; r < args.num_rows; ++r, ++row.words) {
    const float* panel = args.y + r * kPanel;
    float joined[operand::kWideGroup] = {};
    if (group != kPanel) {
      float* to = joined;
      if (args.before != nullptr) to = std::copy_n(args.before + r * kPanel, kPanel, to);
      std::copy_n(panel, kPanel, to);
    }
    operand::write_groups(layout, row, first, group == kPanel ? panel : joined, group);
    for (std::size_t n = first + group; n < end; n += group) operand::write_groups(layout, row, n, zeros, group);
  }
}

// Two passes over the rows: within one, neither waits for the other's long chains.
template <class L, Activation activation>
void gate_rows(const FinishArgs& args) {
  for (std::size_t i = 0; i < args.num_rows * kPanel; i += L::kCols) {
    L::store(L::mul(activated<L, activation>(L::load(args.y + i)), L::load(args.up + i)), args.y + i);
  }
  if (args.epilogue->out != nullptr) store_rows<L, false>(args);
  if (args.epilogue->operand_layout != nullptr && !args.is_half) write_operand(args);
}

template <class L>
void finish(const FinishArgs& args) {
  adjust<L>(args, args.y, args.first_col);
  switch (args.epilogue->kind) {
    case EpilogueKind::kStore:
      return store_rows<L, false>(args);
    case EpilogueKind::kAdd:
      return store_rows<L, true>(args);
    case EpilogueKind::kGated:
      adjust<L>(args, args.up, args.up_col);
      if (args.epilogue->activation == Activation::kSilu) return gate_rows<L, Activation::kSilu>(args);
      return gate_rows<L, Activation::kGeluTanh>(args);
  }
}

}  // namespace
}  // namespace trivium::linear
