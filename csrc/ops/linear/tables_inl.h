// The tables of one level: which instance runs a format. Internal linkage: included by ISA files only.
//
// Compiled in three files per level, so that they build side by side: formats of plain groups, K-quants, and the rest.
#pragma once

#include "ops/linear/float_tile_inl.h"
#include "ops/linear/int_tile_inl.h"

namespace trivium::linear {
namespace {

template <class L, class F>
constexpr IntTiles<L, F, L::kMaxRows> kDirectTiles{};

template <class L, class F>
constexpr IntTiles<L, F, L::kMaxRows, L::kMaxRows / 2> kUnpackedTiles{};

template <class L, class F>
constexpr FloatTiles<L, F, L::kMaxFloatRows> kFloatTiles{};

template <class F>
using UnpackedOf = Unpacked<F::kGroup, F::kZero != 0, F::kHasMin>;

template <class L, class F>
FormatKernels int_kernels() {
  if constexpr (L::kUnpacks && F::kBits < 8) {
    return {L::kMaxRows, kDirectTiles<L, F>.tiles, kUnpackedTiles<L, UnpackedOf<F>>.tiles, unpack_panel<L, F>};
  } else {
    return {L::kMaxRows, kDirectTiles<L, F>.tiles, nullptr, nullptr};
  }
}

// Formats whose groups are of 64 values or more, with operands whose groups are of 64.
template <class L>
FormatKernels wide_kernels(FormatId id) {
  if (id == FormatId::kI8G64 || id == FormatId::kI8G128) {
    return int_kernels<L, Packed<BlockType<ScaleRecord, 8>, 64, 128, false>>();
  }
  return int_kernels<L, Packed<BlockType<ZeroRecord, 4>, 64, 0, true>>();  // i4z
}

// Formats of plain groups.
template <class L>
FormatKernels group_kernels(FormatId id, operand::Format left) {
  if (left == operand::Format::kQ8Wide) return wide_kernels<L>(id);
  switch (id) {
    case FormatId::kI8Channel:
      return int_kernels<L, Packed<BlockType<NoRecord, 8>, 32, 128, false>>();
    case FormatId::kI8G32:
    case FormatId::kI8G64:
    case FormatId::kI8G128:
      return int_kernels<L, Packed<BlockType<ScaleRecord, 8>, 32, 128, false>>();
    case FormatId::kI4:
      return int_kernels<L, Packed<BlockType<ScaleRecord, 4>, 32, 8, false>>();
    case FormatId::kI4Min:
      return int_kernels<L, Packed<BlockType<MinRecord, 4>, 32, 0, true>>();
    case FormatId::kI4ZeroG32:
    case FormatId::kI4ZeroG64:
    case FormatId::kI4ZeroG128:
      return int_kernels<L, Packed<BlockType<ZeroRecord, 4>, 32, 0, true>>();
    case FormatId::kI5:
      return int_kernels<L, Packed<BlockType<ScaleRecord, 5>, 32, 16, false>>();
    case FormatId::kI5Min:
      return int_kernels<L, Packed<BlockType<MinRecord, 5>, 32, 0, true>>();
    default:
      return int_kernels<L, Packed<BlockType<ScaleRecord, 4>, 32, 128, false, true>>();  // iq4
  }
}

template <class L>
FormatKernels super_kernels(FormatId id) {
  switch (id) {
    case FormatId::kQ2K:
      return int_kernels<L, Packed<BlockType<MinRecord, 2, K2Subs>, 16, 0, true>>();
    case FormatId::kQ3K:
      return int_kernels<L, Packed<BlockType<ScaleRecord, 3, K3Subs>, 16, 4, false>>();
    case FormatId::kQ4K:
      return int_kernels<L, Packed<BlockType<MinRecord, 4, K45Subs>, 32, 0, true>>();
    case FormatId::kQ5K:
      return int_kernels<L, Packed<BlockType<MinRecord, 5, K45Subs>, 32, 0, true>>();
    default:
      return int_kernels<L, Packed<BlockType<ScaleRecord, 6, K6Subs>, 16, 32, false>>();
  }
}

template <class L>
FormatKernels float_kernels(FormatId id) {
  const TileFn* tiles = id == FormatId::kF32   ? kFloatTiles<L, F32>.tiles
                        : id == FormatId::kF16 ? kFloatTiles<L, F16>.tiles
                                               : kFloatTiles<L, Bf16>.tiles;
  return {L::kMaxFloatRows, tiles, nullptr, nullptr};
}

}  // namespace
}  // namespace trivium::linear
