// Every listed kernel against the formula in double, and against the scalar kernel bit for bit.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/parallel.h"
#include "ops/norm/norm.h"
#include "tests/check.h"
#include "tests/draw.h"

namespace trivium::norm {
namespace {

using trivium::tests::normal;

struct Case {
  std::size_t rows, width;
  bool has_b, has_b_weight, has_weight;
};

constexpr Case kCases[] = {{1, 1, false, false, true},    {3, 31, true, false, true},    {13, 32, true, true, true},
                           {25, 576, true, false, true},  {2, 100, false, false, false}, {5, 65, true, true, false},
                           {12, 896, false, false, true}, {64, 40, true, false, true}};

operand::Layout layout_of(operand::Format format, std::size_t width) {
  if (format == operand::Format::kQ8Wide) return {format, (width + 63) / 64 * 64, {{64, 128}, {64, 0}}, 2};
  return {format, (width + 31) / 32 * 32, {{32, 128}, {16, 32}, {32, 0}, {16, 0}}, 4};
}

struct Outputs {
  std::vector<float> sum, floats;
  std::vector<std::uint32_t> operand;
};

Outputs run_case(const Kernel& kernel, const Case& c, operand::Format format) {
  const std::vector<float> a = normal(c.rows * c.width, 1);
  const std::vector<float> b = normal(c.rows * c.width, 2);
  const std::vector<float> b_weight = normal(c.width, 3);
  const std::vector<float> weight = normal(c.width, 4);
  const operand::Layout layout = layout_of(format, c.width);
  Outputs out{std::vector<float>(c.rows * c.width), std::vector<float>(c.rows * c.width),
              std::vector<std::uint32_t>(c.rows * layout.row_words(), 0xDEADBEEFU)};
  Args args{};
  args.a = a.data();
  args.b = c.has_b ? b.data() : nullptr;
  args.b_weight = c.has_b_weight ? b_weight.data() : nullptr;
  args.weight = c.has_weight ? weight.data() : nullptr;
  args.num_rows = c.rows;
  args.width = c.width;
  args.eps = 1e-5F;
  args.b_eps = 1e-5F;
  args.sum = out.sum.data();
  args.floats = out.floats.data();
  args.layout = &layout;
  args.operand = out.operand.data();
  run_team([&](Team& team) {
    std::vector<float> scratch(layout.depth);
    run(kernel, args, team, scratch.data());
  });
  return out;
}

double rms(const float* x, std::size_t width) {
  double total = 0;
  for (std::size_t i = 0; i < width; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return 1.0 / std::sqrt(total / static_cast<double>(width) + static_cast<double>(1e-5F));
}

}  // namespace

TEST(norms_are_within_their_bound_of_the_formula) {
  set_num_threads(3);
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    for (const Case& c : kCases) {
      const Outputs out = run_case(kernel, c, operand::Format::kF32);
      const std::vector<float> a = normal(c.rows * c.width, 1);
      const std::vector<float> b = normal(c.rows * c.width, 2);
      const std::vector<float> b_weight = normal(c.width, 3);
      const std::vector<float> weight = normal(c.width, 4);
      double worst = 0;
      for (std::size_t r = 0; r < c.rows; ++r) {
        const float* sum = out.sum.data() + r * c.width;
        const double b_scale = c.has_b_weight ? rms(b.data() + r * c.width, c.width) : 1.0;
        const double scale = c.has_weight ? rms(sum, c.width) : 1.0;
        for (std::size_t i = 0; i < c.width; ++i) {
          const double change = static_cast<double>(b[r * c.width + i]) * b_scale *
                                (c.has_b_weight ? static_cast<double>(b_weight[i]) : 1.0);
          const double expected = static_cast<double>(a[r * c.width + i]) + (c.has_b ? change : 0.0);
          worst = std::max(worst, std::abs(static_cast<double>(sum[i]) - expected));
          const double normed =
              static_cast<double>(sum[i]) * scale * (c.has_weight ? static_cast<double>(weight[i]) : 1.0);
          worst = std::max(worst, std::abs(static_cast<double>(out.floats[r * c.width + i]) - normed));
        }
      }
      EXPECT(worst < 3e-5, "%s: rows=%zu width=%zu: off by %g", kernel.name, c.rows, c.width, worst);
    }
  }
}

TEST(all_levels_write_the_same_bits) {
  set_num_threads(2);
  for (const operand::Format format :
       {operand::Format::kF32, operand::Format::kBf16, operand::Format::kQ8, operand::Format::kQ8Wide}) {
    for (const Case& c : kCases) {
      const Outputs expected = run_case(all().back(), c, format);
      for (const Kernel& kernel : all()) {
        if (!includes(detected_isa(), kernel.isa)) continue;
        const Outputs out = run_case(kernel, c, format);
        const bool same = std::memcmp(out.sum.data(), expected.sum.data(), 4 * out.sum.size()) == 0 &&
                          std::memcmp(out.floats.data(), expected.floats.data(), 4 * out.floats.size()) == 0 &&
                          out.operand == expected.operand;
        EXPECT(same, "%s: rows=%zu width=%zu format=%d", kernel.name, c.rows, c.width, static_cast<int>(format));
      }
    }
  }
}

TEST(a_row_of_an_operand_has_the_same_words_in_any_tile) {
  const Case alone{1, 96, true, false, true};
  const Case many{29, 96, true, false, true};
  const operand::Layout layout = layout_of(operand::Format::kQ8, 96);
  Outputs one = run_case(best(detected_isa()), alone, operand::Format::kQ8);
  Outputs all_rows = run_case(best(detected_isa()), many, operand::Format::kQ8);
  const operand::Row first = operand::row_at(layout, one.operand.data(), 1, 0);
  const operand::Row same = operand::row_at(layout, all_rows.operand.data(), 29, 0);
  std::size_t wrong = 0;
  for (std::size_t w = 0; w < layout.row_words(); ++w) {
    wrong += first.words[w * first.stride] == same.words[w * same.stride] ? 0 : 1;
  }
  EXPECT(wrong == 0, "%zu words differ", wrong);
}

}  // namespace trivium::norm
