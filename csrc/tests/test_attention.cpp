// Attention against float64 on the stored keys and values, on every level, for odd shapes.
#include <cmath>

#include "ops/operand/operand.h"
#include "tests/check.h"
#include "tests/test_attention_model.h"

namespace trivium::attention {
namespace {

using namespace tests;

// H, G, D, window, soft cap. Groups of 1, 3, 7, 8 and of more heads than a bundle has rows.
constexpr Shape kShapes[] = {{9, 3, 64, 0, 0},    {2, 2, 8, 0, 0},    {7, 1, 80, 0, 0},   {8, 1, 128, 0, 0},
                             {3, 1, 18, 0, 0},    {50, 1, 16, 0, 0},  {4, 1, 256, 0, 50}, {6, 2, 96, 100, 0},
                             {3, 3, 64, 64, 0},   {7, 1, 112, 33, 5}, {2, 1, 512, 0, 0},  {5, 5, 24, 1, 0},
                             {12, 2, 64, 300, 0}, {8, 1, 32, 0, 30}};

bool runs_here(const Kernel& kernel) { return includes(detected_isa(), kernel.isa); }

std::size_t length_for(const Kernel& kernel) { return kernel.isa == Isa::kScalar ? 90 : 600; }

// Pages whose tokens before the window of `first` are not held.
std::vector<std::int32_t> hidden(std::vector<std::int32_t> pages, const Shape& shape, std::size_t first) {
  const std::size_t seen = shape.window == 0 || first < shape.window ? 0 : first + 1 - shape.window;
  for (std::size_t page = 0; page < seen / kPageLen; ++page) pages[page] = -1;
  return pages;
}

}  // namespace

TEST(attention_is_within_its_bound_of_exact_arithmetic) {
  set_num_threads(2);
  for (const Kernel& kernel : all()) {
    if (!runs_here(kernel)) continue;
    for (const Shape& shape : kShapes) {
      for (const KVType type : kTypes) {
        const std::size_t length = length_for(kernel);
        OwnedStore owned(type, 2, 2 * pages_for(length), shape.kv_heads, shape.width);
        owned.fill_with_garbage();
        const std::vector<std::int32_t> pages = shuffled_pages(3, pages_for(length), 5);
        fill_pages(owned.store, pages, 0, length, 1);
        // The last rows of the sequence, as one chunk; the pages that no row sees are not held.
        const std::size_t count = 21;
        const std::vector<float> out =
            attend(kernel, owned.store, shape, {{length - count, count, hidden(pages, shape, length - count)}}, {1});
        double worst = 0;
        for (const std::size_t i : {std::size_t{0}, std::size_t{11}, count - 1}) {
          const Expected expected = expect_row(owned.store, shape, pages, 1, length - count + i);
          for (std::size_t k = 0; k < expected.value.size(); ++k) {
            const double error = std::abs(out[i * expected.value.size() + k] - expected.value[k]) / expected.bound[k];
            worst = std::isnan(error) ? INFINITY : std::max(worst, error);
          }
        }
        EXPECT(worst <= 1, "%s: %s H=%zu G=%zu D=%zu window %zu cap %g: %.2f of the bound", kernel.name, name_of(type),
               shape.heads, shape.kv_heads, shape.width, shape.window, static_cast<double>(shape.soft_cap), worst);
      }
    }
  }
}

TEST(levels_without_a_bfloat16_instruction_give_the_same_bits) {
  set_num_threads(1);
  for (const Shape& shape : kShapes) {
    for (const KVType type : kTypes) {
      const std::size_t length = 80;
      OwnedStore owned(type, 1, 2 * pages_for(length), shape.kv_heads, shape.width);
      const std::vector<std::int32_t> pages = shuffled_pages(0, pages_for(length), 5);
      fill_pages(owned.store, pages, 0, length, 1);
      const std::vector<Request> requests{{length - 4, 4, pages}};
      const std::vector<float> expected = attend(best(Isa::kScalar), owned.store, shape, requests, {1});
      for (const Kernel& kernel : all()) {
        const bool has_instruction = kernel.isa >= Isa::kAvx512Vnni && type != KVType::kF32;
        if (!runs_here(kernel) || has_instruction) continue;
        const std::vector<float> out = attend(kernel, owned.store, shape, requests, {1});
        const bool is_equal = std::memcmp(out.data(), expected.data(), 4 * out.size()) == 0;
        EXPECT(is_equal, "%s: %s H=%zu G=%zu D=%zu", kernel.name, name_of(type), shape.heads, shape.kv_heads,
               shape.width);
      }
    }
  }
}

TEST(the_list_of_attention_kernels_is_ordered_and_ends_with_scalar) {
  for (std::size_t i = 1; i < all().size(); ++i) EXPECT(all()[i].isa < all()[i - 1].isa, "entry %zu", i);
  EXPECT(all().back().isa == Isa::kScalar, "%s", all().back().name);
  EXPECT(best(Isa::kScalar).isa == Isa::kScalar, "%s", best(Isa::kScalar).name);
}

}  // namespace trivium::attention
