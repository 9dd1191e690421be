#include "ops/linear/format.h"

#include <cstring>
#include <string>

#include "base/check.h"
#include "ops/linear/blocks.h"

namespace trivium::linear {
namespace {

constexpr std::size_t kSuper = 256;  // values of k per block of the K-quants

constexpr Format floats(FormatId id, const char* name, operand::Format operand, std::size_t value_bytes) {
  return {id, name, operand, operand::kGroup, operand::kGroup * kPanel * value_bytes, 0, 0, 0, false};
}

template <class Record>
constexpr Format ints(FormatId id, const char* name, int bits, std::size_t block, std::size_t group, std::uint8_t zero,
                      bool has_min) {
  const bool is_per_column = id == FormatId::kI8Channel;
  const std::size_t record = is_per_column ? 0 : sizeof(Record);
  return {id,
          name,
          operand::Format::kQ8,
          block,
          record + block / operand::kGroup * group_bytes(bits),
          is_per_column ? sizeof(float) * kPanel : 0,
          group,
          zero,
          has_min};
}

// In the order of FormatId.
constexpr Format kFormats[] = {
    floats(FormatId::kF32, "f32", operand::Format::kF32, 4),
    floats(FormatId::kBf16, "bf16", operand::Format::kBf16, 2),
    ints<NoRecord>(FormatId::kI8Channel, "i8_c", 8, 32, 32, 128, false),
    ints<ScaleRecord>(FormatId::kI8G32, "i8_g32", 8, 32, 32, 128, false),
    ints<ScaleRecord>(FormatId::kI8G64, "i8_g64", 8, 64, 32, 128, false),
    ints<ScaleRecord>(FormatId::kI8G128, "i8_g128", 8, 128, 32, 128, false),
    ints<ScaleRecord>(FormatId::kI4, "i4_g32", 4, 32, 32, 8, false),
    ints<MinRecord>(FormatId::kI4Min, "i4m_g32", 4, 32, 32, 0, true),
    ints<ZeroRecord>(FormatId::kI4ZeroG32, "i4z_g32", 4, 32, 32, 0, true),
    ints<ZeroRecord>(FormatId::kI4ZeroG64, "i4z_g64", 4, 64, 32, 0, true),
    ints<ZeroRecord>(FormatId::kI4ZeroG128, "i4z_g128", 4, 128, 32, 0, true),
    ints<ScaleRecord>(FormatId::kI5, "i5_g32", 5, 32, 32, 16, false),
    ints<MinRecord>(FormatId::kI5Min, "i5m_g32", 5, 32, 32, 0, true),
    ints<K2Record>(FormatId::kQ2K, "q2_k", 2, kSuper, 16, 0, true),
    ints<K3Record>(FormatId::kQ3K, "q3_k", 3, kSuper, 16, 4, false),
    ints<K45Record>(FormatId::kQ4K, "q4_k", 4, kSuper, 32, 0, true),
    ints<K45Record>(FormatId::kQ5K, "q5_k", 5, kSuper, 32, 0, true),
    ints<K6Record>(FormatId::kQ6K, "q6_k", 6, kSuper, 16, 32, false),
    ints<ScaleRecord>(FormatId::kIq4, "iq4", 4, 32, 32, 128, false),
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
