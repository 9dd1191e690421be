#include "ops/linear/format.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "ops/linear/visit.h"

namespace trivium::linear {
namespace {

constexpr std::size_t kSuper = 256;  // values of k per block of the K-quants

constexpr Format floats(FormatId id, const char* name, operand::Format operand, std::size_t value_bytes) {
  return {id, name, operand, operand::kGroup, operand::kGroup * kPanel * value_bytes, 0, 0, 0, 0, false};
}

template <class Block>
constexpr Format ints(FormatId id, const char* name, std::size_t block, std::size_t group, std::uint8_t zero,
                      bool has_min) {
  return {id,
          name,
          operand::Format::kQ8,
          block,
          Block::kRecordBytes + block / operand::kGroup * Block::kGroupBytes,
          id == FormatId::kI8Channel ? sizeof(float) * kPanel : 0,
          group,
          std::is_empty_v<typename Block::Subs> ? block : group,
          zero,
          has_min};
}

using I8 = BlockType<ScaleRecord, 8>;
using I4 = BlockType<ScaleRecord, 4>;
using I4Zero = BlockType<ZeroRecord, 4>;

// In the order of FormatId.
constexpr Format kFormats[] = {
    floats(FormatId::kF32, "f32", operand::Format::kF32, 4),
    floats(FormatId::kBf16, "bf16", operand::Format::kBf16, 2),
    floats(FormatId::kF16, "f16", operand::Format::kF32, 2),
    ints<BlockType<NoRecord, 8>>(FormatId::kI8Channel, "i8_c", 32, 32, 128, false),
    ints<I8>(FormatId::kI8G32, "i8_g32", 32, 32, 128, false),
    ints<I8>(FormatId::kI8G64, "i8_g64", 64, 32, 128, false),
    ints<I8>(FormatId::kI8G128, "i8_g128", 128, 32, 128, false),
    ints<I4>(FormatId::kI4, "i4_g32", 32, 32, 8, false),
    ints<BlockType<MinRecord, 4>>(FormatId::kI4Min, "i4m_g32", 32, 32, 0, true),
    ints<I4Zero>(FormatId::kI4ZeroG32, "i4z_g32", 32, 32, 0, true),
    ints<I4Zero>(FormatId::kI4ZeroG64, "i4z_g64", 64, 32, 0, true),
    ints<I4Zero>(FormatId::kI4ZeroG128, "i4z_g128", 128, 32, 0, true),
    ints<BlockType<ScaleRecord, 5>>(FormatId::kI5, "i5_g32", 32, 32, 16, false),
    ints<BlockType<MinRecord, 5>>(FormatId::kI5Min, "i5m_g32", 32, 32, 0, true),
    ints<BlockType<MinRecord, 2, K2Subs>>(FormatId::kQ2K, "q2_k", kSuper, 16, 0, true),
    ints<BlockType<ScaleRecord, 3, K3Subs>>(FormatId::kQ3K, "q3_k", kSuper, 16, 4, false),
    ints<BlockType<MinRecord, 4, K45Subs>>(FormatId::kQ4K, "q4_k", kSuper, 32, 0, true),
    ints<BlockType<MinRecord, 5, K45Subs>>(FormatId::kQ5K, "q5_k", kSuper, 32, 0, true),
    ints<BlockType<ScaleRecord, 6, K6Subs>>(FormatId::kQ6K, "q6_k", kSuper, 16, 32, false),
    ints<I4>(FormatId::kIq4, "iq4", 32, 32, 128, false),
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < std::size(kFormats); ++i) {
    if (kFormats[i].id != static_cast<FormatId>(i)) return false;
  }
  return std::size(kFormats) == static_cast<std::size_t>(FormatId::kIq4) + 1;
}
static_assert(is_in_order());

// No K-quant takes more bytes than its blocks in a GGUF file do.
constexpr std::size_t bytes_of(FormatId id) { return kFormats[static_cast<std::size_t>(id)].block_bytes; }
static_assert(bytes_of(FormatId::kQ2K) == 84 * kPanel && bytes_of(FormatId::kQ3K) == 110 * kPanel);
static_assert(bytes_of(FormatId::kQ4K) == 144 * kPanel && bytes_of(FormatId::kQ5K) == 176 * kPanel);
static_assert(bytes_of(FormatId::kQ6K) == 210 * kPanel);

}  // namespace

std::span<const Format> formats() { return kFormats; }

const Format& format_named(const char* name) {
  std::string names;
  for (const Format& format : kFormats) {
    if (std::strcmp(name, format.name) == 0) return format;
    names += names.empty() ? "" : ", ";
    names += format.name;
  }
  fail("weight format '%s' is unknown; known are: %s", name, names.c_str());
}

}  // namespace trivium::linear
