// From a format's name at run time to its record and bits at compile time.
#pragma once

#include <cstddef>
#include <type_traits>

#include "ops/linear/blocks.h"

namespace trivium::linear {

// An empty struct has a size, but takes no room here.
template <class T>
constexpr std::size_t bytes_of = std::is_empty_v<T> ? 0 : sizeof(T);

// A block: its record, then groups of sub-scales and codes.
template <class RecordType, int kBitsOf, class SubsType = NoRecord>
struct BlockType {
  using Record = RecordType;
  using Subs = SubsType;
  static constexpr int kBits = kBitsOf;
  static constexpr std::size_t kRecordBytes = bytes_of<Record>;
  static constexpr std::size_t kSubsBytes = bytes_of<Subs>;
  static constexpr std::size_t kGroupBytes = kSubsBytes + group_bytes(kBits);

  static const std::byte* group(const std::byte* block, std::size_t g) {
    return block + kRecordBytes + g * kGroupBytes;
  }
};

// Calls fn(BlockType<…>{}) for a format of integer codes.
template <class Fn>
decltype(auto) visit_ints(FormatId id, Fn&& fn) {
  switch (id) {
    case FormatId::kI8G32:
    case FormatId::kI8G64:
    case FormatId::kI8G128:
      return fn(BlockType<ScaleRecord, 8>{});
    case FormatId::kI4:
    case FormatId::kIq4:
      return fn(BlockType<ScaleRecord, 4>{});
    case FormatId::kI4Min:
      return fn(BlockType<MinRecord, 4>{});
    case FormatId::kI4ZeroG32:
    case FormatId::kI4ZeroG64:
    case FormatId::kI4ZeroG128:
      return fn(BlockType<ZeroRecord, 4>{});
    case FormatId::kI5:
      return fn(BlockType<ScaleRecord, 5>{});
    case FormatId::kI5Min:
      return fn(BlockType<MinRecord, 5>{});
    case FormatId::kQ2K:
      return fn(BlockType<MinRecord, 2, K2Subs>{});
    case FormatId::kQ3K:
      return fn(BlockType<ScaleRecord, 3, K3Subs>{});
    case FormatId::kQ4K:
      return fn(BlockType<MinRecord, 4, K45Subs>{});
    case FormatId::kQ5K:
      return fn(BlockType<MinRecord, 5, K45Subs>{});
    case FormatId::kQ6K:
      return fn(BlockType<ScaleRecord, 6, K6Subs>{});
    case FormatId::kI8Channel:
    case FormatId::kF32:  // numbers have no codes; callers branch before
    case FormatId::kBf16:
    case FormatId::kF16:
      break;
  }
  return fn(BlockType<NoRecord, 8>{});
}

}  // namespace trivium::linear
