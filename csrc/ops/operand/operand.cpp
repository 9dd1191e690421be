#include "ops/operand/operand_inl.h"

#include <algorithm>

namespace trivium::operand {

void write_rows(const float* values, std::size_t num_rows, std::size_t width, const Layout& layout, void* operand) {
  for (std::size_t m = 0; m < num_rows; ++m) {
    const Row row = row_at(layout, operand, num_rows, m);
    for (std::size_t k = 0; k < layout.depth; k += layout.group()) {
      float group[kWideGroup] = {};
      if (k < width) std::copy_n(values + m * width + k, std::min(layout.group(), width - k), group);
      write_groups(layout, row, k, group, layout.group());
    }
  }
}

void read_row(const Layout& layout, const void* operand, std::size_t num_rows, std::size_t row, float* out) {
  const Row from = row_at(layout, const_cast<void*>(operand), num_rows, row);
  const auto word = [&](std::size_t w) { return from.words[w * from.stride]; };
  for (std::size_t k = 0; k < layout.depth; ++k) {
    switch (layout.format) {
      case Format::kF32:
        out[k] = float_of(word(k));
        break;
      case Format::kBf16:
        out[k] = float_of((word(k / 2) >> (16 * (k % 2))) << 16);
        break;
      case Format::kQ8:
      case Format::kQ8Wide: {
        const auto unit = static_cast<std::int8_t>(word(k / 4) >> (8 * (k % 4)));
        out[k] = static_cast<float>(unit) * float_of(word(layout.scales_at() + k / layout.group()));
        break;
      }
    }
  }
}

}  // namespace trivium::operand
