// One row of a packed matrix, by the definition of its format: every operation is rounded once, in the order in which
// format.h writes it.
#include <algorithm>
#include <cstring>

#include "ops/linear/half.h"
#include "ops/linear/linear.h"
#include "ops/linear/visit.h"

namespace trivium::linear {
namespace {

// The codes of column n in a group.
template <int kBits>
void read_codes(const std::byte* group, std::size_t n, int* codes) {
  constexpr int kLow = low_plane(kBits);
  constexpr int kHigh = high_plane(kBits);
  const auto* lines = reinterpret_cast<const std::uint8_t*>(group) + n / kHalf * kLine * kBits;
  for (int k = 0; k < static_cast<int>(operand::kGroup); ++k) {
    const int q = k / 4;
    const auto* column = lines + 4 * (n % kHalf) + k % 4;
    int code = column[low_line(kBits, q) * static_cast<int>(kLine)] >> (q * kLow % 8) & ((1 << kLow) - 1);
    if constexpr (kHigh > 0) {
      code |= (column[high_line(kBits, q) * static_cast<int>(kLine)] >> (q * kHigh % 8) & ((1 << kHigh) - 1)) << kLow;
    }
    codes[k] = code;
  }
}

float six_bits(const SixBits& bits, std::size_t at) {
  const int low = bits.low[at % 32] >> (4 * (at / 32)) & 15;
  const int high = bits.high[at % 16] >> (2 * (at / 16)) & 3;
  return static_cast<float>(low | high << 4);
}

// Column n of one group, or of the piece of 16 of it in K-quants with such: value = code * scale - min, where the code
// has its zero point taken off.
struct Line {
  float scale;
  float min;
};

Line line_of(const MinRecord& record, const K45Subs& subs, std::size_t, std::size_t n) {
  return {float_of_half(record.scale[n]) * six_bits(subs.bits, n),
          float_of_half(record.min[n]) * six_bits(subs.bits, kPanel + n)};
}
Line line_of(const MinRecord& record, const K2Subs& subs, std::size_t piece, std::size_t n) {
  const int byte = subs.scales_mins[piece][n];
  return {float_of_half(record.scale[n]) * static_cast<float>(byte & 15),
          float_of_half(record.min[n]) * static_cast<float>(byte >> 4)};
}
Line line_of(const ScaleRecord& record, const K3Subs& subs, std::size_t piece, std::size_t n) {
  return {float_of_half(record.scale[n]) * (six_bits(subs.bits, piece * kPanel + n) - 32.0F), 0.0F};
}
Line line_of(const ScaleRecord& record, const K6Subs& subs, std::size_t piece, std::size_t n) {
  return {float_of_half(record.scale[n]) * static_cast<float>(subs.scales[piece][n]), 0.0F};
}

void write_group(const Format& format, const ScaleRecord& record, const NoRecord&, std::size_t n, const int* codes,
                 float* out) {
  const float scale = float_of_half(record.scale[n]);
  for (std::size_t k = 0; k < operand::kGroup; ++k) {
    const int value = format.id == FormatId::kIq4 ? kIq4Values[codes[k]] : codes[k] - format.zero;
    out[k] = static_cast<float>(value) * scale;
  }
}

void write_group(const Format&, const MinRecord& record, const NoRecord&, std::size_t n, const int* codes, float* out) {
  const float scale = float_of_half(record.scale[n]);
  const float min = float_of_half(record.min[n]);
  for (std::size_t k = 0; k < operand::kGroup; ++k) out[k] = static_cast<float>(codes[k]) * scale + min;
}

void write_group(const Format&, const ZeroRecord& record, const NoRecord&, std::size_t n, const int* codes,
                 float* out) {
  const float scale = float_of_half(record.scale[n]);
  for (std::size_t k = 0; k < operand::kGroup; ++k) out[k] = static_cast<float>(codes[k] - record.zero[n]) * scale;
}

template <class Record, class Subs>
void write_group(const Format& format, const Record& record, const Subs& subs, std::size_t n, const int* codes,
                 float* out) {
  for (std::size_t k = 0; k < operand::kGroup; ++k) {
    const Line line = line_of(record, subs, k / format.group, n);
    const float product = static_cast<float>(codes[k] - format.zero) * line.scale;
    out[k] = format.has_min ? product - line.min : product;
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
    const std::byte* group = Block::group(block, k % format.block / operand::kGroup);
    int codes[operand::kGroup];
    float values[operand::kGroup];
    read_codes<Block::kBits>(group + Block::kSubsBytes, n, codes);
    if constexpr (Block::kRecordBytes == 0) {
      write_channel(format, panel, n, codes, values);
    } else {
      write_group(format, *reinterpret_cast<const typename Block::Record*>(block),
                  *reinterpret_cast<const typename Block::Subs*>(group), n, codes, values);
    }
    std::copy(values, values + std::min(operand::kGroup, depth - k), out + k);
  }
}

void unpack_f32(const std::byte* panel, std::size_t n, std::size_t depth, float* out) {
  for (std::size_t k = 0; k < depth; ++k) std::memcpy(out + k, panel + (k * kPanel + n) * sizeof(float), sizeof(float));
}

void unpack_f16(const std::byte* panel, std::size_t n, std::size_t depth, float* out) {
  for (std::size_t k = 0; k < depth; ++k) {
    std::uint16_t value;
    std::memcpy(&value, panel + (k * kPanel + n) * sizeof value, sizeof value);
    out[k] = float_of_half(value);
  }
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
  if (format.id == FormatId::kF16) return unpack_f16(panel, n, depth, out);
  visit_ints(format.id, [&](auto block) { unpack_ints<decltype(block)>(format, panel, n, depth, out); });
}

}  // namespace trivium::linear
