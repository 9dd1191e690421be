#include <vector>

#include "ops/_template/scale.h"
#include "tests/check.h"

namespace trivium::scale {

TEST(the_template_op_scales_every_element_in_place) {
  for (const Kernel& kernel : all()) {
    if (kernel.isa > detected_isa()) continue;
    for (const std::size_t size : {0, 1, 7, 8, 33}) {
      std::vector<float> values(size);
      for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(i);
      kernel.run(3.0F, values.data(), values.data(), size);
      for (std::size_t i = 0; i < size; ++i) {
        EXPECT(values[i] == 3.0F * static_cast<float>(i), "%s: size %zu, element %zu", kernel.name, size, i);
      }
    }
  }
}

}  // namespace trivium::scale
