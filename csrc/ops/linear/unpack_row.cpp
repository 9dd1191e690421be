// One row of a packed matrix, by the definition of its format: every operation is rounded once, in the order in which
// format.h writes it.
#include <algorithm>
#include <cstring>

#include "ops/linear/half.h"
#include "ops/linear/linear.h"
#include "ops/linear/visit.h"

namespace trivium::linear {
namespace {

// The plane bits [0, width) of quad q, byte `at`.
unsigned plane_bits(const std::uint8_t* lines, int width, int q, std::size_t at) {
  const std::uint8_t byte = lines[static_cast<std::size_t>(q * width / 8) * kLine + at];
  return static_cast<unsigned>(byte) >> (q * width % 8) & ((1U << width) - 1);
}

// The codes of column n in a group.
template <int kBits>
void read_codes(const std::byte* group, std::size_t n, int* codes) {
  constexpr int kLow = low_plane(kBits);
  constexpr int kHigh = high_plane(kBits);
  const auto* lines = reinterpret_cast<const std::uint8_t*>(group) + n / kHalf * kLine * kBits;
  for (int k = 0; k < static_cast<int>(operand::kGroup); ++k) {
    const std::size_t at = 4 * (n % kHalf) + static_cast<std::size_t>(k % 4);
    unsigned code = plane_bits(lines, kLow, k / 4, at);
    if constexpr (kHigh > 0) code |= plane_bits(lines + kLow * kLine, kHigh, k / 4, at) << kLow;
    codes[k] = static_cast<int>(code);
  }
}

int sub(const SixBits& bits, std::size_t row, std::size_t at) {
  const int low = bits.low[row / 2][at] >> (4 * (row % 2)) & 15;
  const int high = bits.high[row / 4][at] >> (2 * (row % 4)) & 3;
  return low | high << 4;
}

// How a group of `kGroup` codes becomes values: c * scale - min for has_min, else (c - zero) * scale.
struct Line {
  float scale;
  float min;
};

Line line_of(const K45Record& record, std::size_t g, std::size_t n) {
  return {float_of_half(record.scale[n]) * static_cast<float>(sub(record.subs, g, n)),
          float_of_half(record.min[n]) * static_cast<float>(sub(record.subs, g, kPanel + n))};
}
Line line_of(const K2Record& record, std::size_t g, std::size_t n) {
  return {float_of_half(record.scale[n]) * static_cast<float>(record.subs[g][n] & 15),
          float_of_half(record.min[n]) * static_cast<float>(record.subs[g][n] >> 4)};
}
Line line_of(const K3Record& record, std::size_t g, std::size_t n) {
  return {float_of_half(record.scale[n]) * static_cast<float>(sub(record.subs, g / 2, g % 2 * kPanel + n) - 32), 0.0F};
}
Line line_of(const K6Record& record, std::size_t g, std::size_t n) {
  return {float_of_half(record.scale[n]) * static_cast<float>(record.subs[g][n]), 0.0F};
}

void write_group(const Format& format, const ScaleRecord& record, std::size_t, std::size_t n, const int* codes,
                 float* out) {
  const float scale = float_of_half(record.scale[n]);
  for (std::size_t k = 0; k < operand::kGroup; ++k) {
    const int value = format.id == FormatId::kIq4 ? kIq4Values[codes[k]] : codes[k] - format.zero;
    out[k] = static_cast<float>(value) * scale;
  }
}

void write_group(const Format&, const MinRecord& record, std::size_t, std::size_t n, const int* codes, float* out) {
  const float scale = float_of_half(record.scale[n]);
  const float min = float_of_half(record.min[n]);
  for (std::size_t k = 0; k < operand::kGroup; ++k) out[k] = static_cast<float>(codes[k]) * scale + min;
}

void write_group(const Format&, const ZeroRecord& record, std::size_t, std::size_t n, const int* codes, float* out) {
  const float scale = float_of_half(record.scale[n]);
  for (std::size_t k = 0; k < operand::kGroup; ++k) out[k] = static_cast<float>(codes[k] - record.zero[n]) * scale;
}

template <class Record>
void write_group(const Format& format, const Record& record, std::size_t g, std::size_t n, const int* codes,
                 float* out) {
  const std::size_t pieces = operand::kGroup / format.group;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const Line line = line_of(record, g * pieces + piece, n);
    for (std::size_t k = piece * format.group; k < (piece + 1) * format.group; ++k) {
      const float product = static_cast<float>(codes[k] - format.zero) * line.scale;
      out[k] = format.has_min ? product - line.min : product;
    }
  }
}

void write_channel(const Format& format, const std::byte* panel, std::size_t n, const int* codes, float* out) {
  float scale;
  std::memcpy(&scale, panel + n * sizeof scale, sizeof scale);
  for (std::size_t k = 0; k < operand::kGroup; ++k) out[k] = static_cast<float>(codes[k] - format.zero) * scale;
}

template <class Block>
void unpack_ints(const Format& format, const std::byte* panel, std::size_t n, std::size_t depth, float* out) {
  for (std::size_t k = 0; k < depth; k += operand::kGroup) {
    const std::byte* block = panel + format.header_bytes + k / format.block * format.block_bytes;
    const std::size_t group = k % format.block / operand::kGroup;
    int codes[operand::kGroup];
    float values[operand::kGroup];
    read_codes<Block::kBits>(block + Block::kRecordBytes + group * group_bytes(Block::kBits), n, codes);
    if constexpr (Block::kRecordBytes == 0) {
      write_channel(format, panel, n, codes, values);
    } else {
      write_group(format, *reinterpret_cast<const typename Block::Record*>(block), group, n, codes, values);
    }
    std::copy(values, values + std::min(operand::kGroup, depth - k), out + k);
  }
}

void unpack_f32(const std::byte* panel, std::size_t n, std::size_t depth, float* out) {
  for (std::size_t k = 0; k < depth; ++k) std::memcpy(out + k, panel + (k * kPanel + n) * sizeof(float), sizeof(float));
}

void unpack_bf16(const std::byte* panel, std::size_t n, std::size_t depth, float* out) {
  for (std::size_t k = 0; k < depth; ++k) {
    std::uint16_t value;
    std::memcpy(&value, panel + ((k / 2 * kPanel + n) * 2 + k % 2) * sizeof value, sizeof value);
    out[k] = __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
  }
}

}  // namespace

void unpack_row(const Weight& weight, std::size_t depth, std::size_t row, float* out) {
  const Format& format = *weight.format;
  const std::byte* panel = weight.panels + row / kPanel * panel_bytes(format, depth);
  const std::size_t n = row % kPanel;
  if (format.id == FormatId::kF32) return unpack_f32(panel, n, depth, out);
  if (format.id == FormatId::kBf16) return unpack_bf16(panel, n, depth, out);
  visit_ints(format.id, [&](auto block) { unpack_ints<decltype(block)>(format, panel, n, depth, out); });
}

}  // namespace trivium::linear
