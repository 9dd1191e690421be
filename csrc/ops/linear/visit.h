// From a format's name at run time to its record and bits at compile time.
#pragma once

#include <cstddef>
#include <type_traits>

#include "ops/linear/blocks.h"

namespace trivium::linear {

template <class RecordType, int kBitsOf>
struct BlockType {
  using Record = RecordType;
  static constexpr int kBits = kBitsOf;
  // Bytes before a block's first group: an empty struct has a size, but takes no room here.
  static constexpr std::size_t kRecordBytes = std::is_empty_v<Record> ? 0 : sizeof(Record);
};

// Calls fn(BlockType<Record, kBits>{}) for a format of integer codes.
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
      return fn(BlockType<K2Record, 2>{});
    case FormatId::kQ3K:
      return fn(BlockType<K3Record, 3>{});
    case FormatId::kQ4K:
      return fn(BlockType<K45Record, 4>{});
    case FormatId::kQ5K:
      return fn(BlockType<K45Record, 5>{});
    case FormatId::kQ6K:
      return fn(BlockType<K6Record, 6>{});
    case FormatId::kI8Channel:
    case FormatId::kF32:  // these two have no codes; callers branch before
    case FormatId::kBf16:
      break;
  }
  return fn(BlockType<NoRecord, 8>{});
}

}  // namespace trivium::linear
