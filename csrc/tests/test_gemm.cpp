// Every listed kernel against the defining chain, on exactly sized buffers so that sanitizers see any overrun.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/parallel.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/pack.h"
#include "tests/check.h"
#include "tests/draw.h"

namespace trivium::gemm {
namespace {

using trivium::tests::normal;

struct Case {
  std::size_t rows, cols, depth;
};

constexpr Case kCases[] = {{1, 1, 1},   {1, 32, 7},  {2, 33, 64},  {5, 70, 31},    {7, 96, 100},    {12, 64, 33},
                           {13, 31, 9}, {25, 65, 3}, {200, 40, 5}, {14, 40, 2100}, {1, 3000, 1030}, {3, 5, 0}};

bool runs_here(const Kernel& kernel) { return includes(detected_isa(), kernel.isa); }

// One element by definition: w_k_stride and friends place B(k, n).
float chain(const float* a, const float* b, std::size_t depth, std::size_t b_step) {
  float sum = 0;
  for (std::size_t k = 0; k < depth; ++k) sum = std::fma(a[k], b[k * b_step], sum);
  return sum;
}

bool has_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST(packed_products_have_the_bits_of_the_defining_chain) {
  set_num_threads(3);
  for (const Kernel& kernel : all()) {
    if (!runs_here(kernel)) continue;
    for (const Case& c : kCases) {
      const std::vector<float> a = normal(c.rows * c.depth, 1);
      const std::vector<float> w = normal(c.cols * c.depth, 2);
      std::vector<float> panels(packed_size(c.cols, c.depth), NAN);
      std::vector<float> out(c.rows * c.cols, NAN);
      pack({w.data(), c.cols, c.depth, c.depth}, panels.data());
      gemm_packed(kernel, {a.data(), c.rows, c.depth, c.depth}, panels.data(), {out.data(), c.rows, c.cols, c.cols});
      std::size_t wrong = 0;
      for (std::size_t m = 0; m < c.rows; ++m) {
        for (std::size_t n = 0; n < c.cols; ++n) {
          const float expected = chain(a.data() + m * c.depth, w.data() + n * c.depth, c.depth, 1);
          wrong += has_bits(out[m * c.cols + n], expected) ? 0 : 1;
        }
      }
      EXPECT(wrong == 0, "%s: M=%zu N=%zu K=%zu: %zu wrong", kernel.name, c.rows, c.cols, c.depth, wrong);
    }
  }
}

TEST(batched_products_have_the_bits_of_the_defining_chain) {
  set_num_threads(3);
  constexpr std::size_t kCount = 3;
  for (const Kernel& kernel : all()) {
    if (!runs_here(kernel)) continue;
    for (const Case& c : kCases) {
      const std::size_t a_size = c.rows * c.depth;
      const std::size_t b_size = c.cols * c.depth;
      const std::size_t c_size = c.rows * c.cols;
      const std::vector<float> a = normal(kCount * a_size, 3);
      const std::vector<float> b = normal(kCount * b_size, 4);
      std::vector<float> nt(kCount * c_size, NAN);
      std::vector<float> nn(kCount * c_size, NAN);
      const Batch<const float> batch_a{{a.data(), c.rows, c.depth, c.depth}, a_size};
      matmul_nt(kernel, kCount, batch_a, {{b.data(), c.cols, c.depth, c.depth}, b_size},
                {{nt.data(), c.rows, c.cols, c.cols}, c_size});
      matmul_nn(kernel, kCount, batch_a, {{b.data(), c.depth, c.cols, c.cols}, b_size},
                {{nn.data(), c.rows, c.cols, c.cols}, c_size});
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        for (std::size_t m = 0; m < c.rows; ++m) {
          for (std::size_t n = 0; n < c.cols; ++n) {
            const float* row = a.data() + i * a_size + m * c.depth;
            const std::size_t at = i * c_size + m * c.cols + n;
            wrong += has_bits(nt[at], chain(row, b.data() + i * b_size + n * c.depth, c.depth, 1)) ? 0 : 1;
            wrong += has_bits(nn[at], chain(row, b.data() + i * b_size + n, c.depth, c.cols)) ? 0 : 1;
          }
        }
      }
      EXPECT(wrong == 0, "%s: M=%zu N=%zu K=%zu: %zu wrong", kernel.name, c.rows, c.cols, c.depth, wrong);
    }
  }
}

TEST(the_list_of_kernels_is_ordered_and_ends_with_scalar) {
  for (std::size_t i = 1; i < all().size(); ++i) EXPECT(all()[i].isa < all()[i - 1].isa, "entry %zu", i);
  EXPECT(all().back().isa == Isa::kScalar, "%s", all().back().name);
  EXPECT(best(Isa::kScalar).isa == Isa::kScalar, "%s", best(Isa::kScalar).name);
}

}  // namespace trivium::gemm
