// Numbers that tests draw.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace trivium::tests {

// Standard normal numbers, the same for the same seed.
inline std::vector<float> normal(std::size_t size, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(size);
  for (float& value : values) value = draw(engine);
  return values;
}

}  // namespace trivium::tests
