#include "ops/operand/operand.h"

#include <bit>

namespace trivium::operand {

void read_row(const Layout& layout, const void* operand, std::size_t num_rows, std::size_t row, float* out) {
  const Row from = row_at(layout, const_cast<void*>(operand), num_rows, row);
  const auto word = [&](std::size_t w) { return from.words[w * from.stride]; };
  for (std::size_t k = 0; k < layout.depth; ++k) {
    switch (layout.format) {
      case Format::kF32:
        out[k] = std::bit_cast<float>(word(k));
        break;
      case Format::kBf16:
        out[k] = std::bit_cast<float>((word(k / 2) >> (16 * (k % 2))) << 16);
        break;
      case Format::kQ8: {
        const auto unit = static_cast<std::int8_t>(word(k / 4) >> (8 * (k % 4)));
        out[k] = static_cast<float>(unit) * std::bit_cast<float>(word(layout.scales_at() + k / kGroup));
        break;
      }
    }
  }
}

}  // namespace trivium::operand
