// Every listed kernel reads every word, and counts the operations of every loop.
#include <numeric>
#include <vector>

#include "base/isa.h"
#include "ops/limits/limits.h"
#include "tests/check.h"

namespace trivium::limits {
namespace {

TEST(limits_read_every_word) {
  std::vector<std::uint64_t> words(64 * 9);
  std::iota(words.begin(), words.end(), 1);
  const std::uint64_t expected = words.size() * (words.size() + 1) / 2;
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    EXPECT(kernel.functions().read(words.data(), words.size()) == expected, "%s", kernel.name);
    EXPECT(kernel.functions().read(words.data(), 0) == 0, "%s", kernel.name);
  }
}

TEST(limits_count_operations_by_loops) {
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kBf16, Arithmetic::kF32}) {
      const double once = kernel.functions().compute(arithmetic, 10);
      EXPECT(once > 0, "%s", kernel.name);
      EXPECT(kernel.functions().compute(arithmetic, 30) == 3 * once, "%s", kernel.name);
    }
  }
}

}  // namespace
}  // namespace trivium::limits
