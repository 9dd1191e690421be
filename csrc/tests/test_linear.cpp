// Products of every format on every level: against float64, and against each other bit for bit.
#include "ops/linear/linear.h"

#include <algorithm>

#include "tests/check.h"
#include "tests/test_linear_cases.h"

namespace trivium::linear::tests {
namespace {

bool runs_here(const Kernels& kernels) { return includes(detected_isa(), isa_of(kernels)); }

bool has_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Case {
  std::size_t rows, cols, depth;
};

constexpr Case kCases[] = {{1, 1, 1},   {1, 33, 256},  {2, 96, 40},   {3, 31, 320},  {4, 64, 512},
                           {5, 70, 96}, {7, 100, 576}, {12, 33, 300}, {13, 65, 256}, {30, 40, 600}};

}  // namespace

// A chain of K / 32 groups, each rounded three times, of terms of size |w| |x|: eps = 2^-24 per rounding. bf16 sums all
// K terms one by one.
TEST(products_are_within_their_bound_of_float64) {
  set_num_threads(3);
  for (const auto& [known, left] : pairings()) {
    const Format& format = *known;
    for (const Case& c : kCases) {
      const Matrix matrix(format, c.cols, c.depth, 11);
      const std::vector<float> x = normal(c.rows * c.depth, 12);
      const Rows rows(layout_for(format, c.depth), x.data(), c.rows, c.depth);
      std::vector<std::vector<float>> weights;
      for (std::size_t n = 0; n < c.cols; ++n) weights.push_back(matrix.row(n));
      for (const Kernels* kernels : all()) {
        if (!runs_here(*kernels)) continue;
        const std::vector<float> out = multiply(*kernels, matrix, rows);
        double worst = 0;
        for (std::size_t m = 0; m < c.rows; ++m) {
          const std::vector<float> row = rows.row(m);
          for (std::size_t n = 0; n < c.cols; ++n) {
            double sum = 0;
            double size = 0;
            for (std::size_t k = 0; k < c.depth; ++k) {
              const double term = static_cast<double>(row[k]) * static_cast<double>(weights[n][k]);
              sum += term;
              size += std::abs(term);
            }
            // Offsets and minima cancel: the terms that are rounded may be several times larger than their sum.
            const double bound = 16 * std::ldexp(1.0, -24) * size * (1.0 + static_cast<double>(c.depth) / 32) + 1e-6;
            worst = std::max(worst, std::abs(static_cast<double>(out[m * c.cols + n]) - sum) / bound);
          }
        }
        EXPECT(worst <= 1, "%s of %d on %s: M=%zu N=%zu K=%zu: %.2f of the bound", format.name, static_cast<int>(left),
               isa_name(isa_of(*kernels)), c.rows, c.cols, c.depth, worst);
      }
    }
  }
}

// Integer sums are exact and the chain of fused multiply-adds is the same, so levels agree to the bit; bf16 has its own
// instruction on one level.
TEST(levels_give_the_same_bits) {
  set_num_threads(2);
  for (const auto& [known, left] : pairings()) {
    const Format& format = *known;
    if (format.id == FormatId::kBf16) continue;
    for (const Case& c : kCases) {
      const Matrix matrix(format, c.cols, c.depth, 21);
      const std::vector<float> x = normal(c.rows * c.depth, 22);
      const Rows rows(layout_for(format, c.depth), x.data(), c.rows, c.depth);
      const std::vector<float> expected = multiply(*all().back(), matrix, rows);
      for (const Kernels* kernels : all()) {
        if (!runs_here(*kernels)) continue;
        EXPECT(has_bits(multiply(*kernels, matrix, rows), expected), "%s on %s: M=%zu N=%zu K=%zu", format.name,
               isa_name(isa_of(*kernels)), c.rows, c.cols, c.depth);
      }
    }
  }
}

TEST(float16_weights_give_the_bits_of_the_same_numbers_in_float32) {
  set_num_threads(2);
  for (const Case& c : kCases) {
    const Matrix matrix(format_named("f16"), c.cols, c.depth, 41);
    std::vector<float> wide;
    for (std::size_t n = 0; n < c.cols; ++n) {
      const std::vector<float> row = matrix.row(n);
      wide.insert(wide.end(), row.begin(), row.end());
    }
    const Format& f32 = format_named("f32");
    const Aligned panels(num_panels(c.cols) * panel_bytes(f32, c.depth));
    Codes codes{};
    codes.num_cols = c.cols;
    codes.depth = c.depth;
    codes.codes = wide.data();
    pack(f32, codes, panels.data());
    const Weight weights[2] = {matrix.weight(), {&f32, panels.data(), c.cols}};
    const std::vector<float> x = normal(c.rows * c.depth, 42);
    for (const Kernels* kernels : all()) {
      if (!runs_here(*kernels)) continue;
      std::vector<float> out[2];
      for (std::size_t i = 0; i < 2; ++i) {
        out[i].resize(c.rows * c.cols);
        multiply(*kernels, weights[i], c.depth, x.data(), c.rows, out[i].data());
      }
      EXPECT(has_bits(out[0], out[1]), "%s: M=%zu N=%zu K=%zu", isa_name(isa_of(*kernels)), c.rows, c.cols, c.depth);
    }
  }
}

// The law: a row's bits do not depend on how many rows there are, where it stands, the tactic or the threads.
TEST(a_row_has_the_same_bits_wherever_it_stands) {
  constexpr std::size_t kCols = 70;
  constexpr std::size_t kDepth = 520;
  constexpr std::size_t kMost = 100;
  const std::vector<float> x = normal(kMost * kDepth, 32);
  for (const auto& [known, left] : pairings()) {
    const Format& format = *known;
    const Matrix matrix(format, kCols, kDepth, 31);
    for (const Kernels* kernels : all()) {
      if (!runs_here(*kernels)) continue;
      const bool is_slow = isa_of(*kernels) == Isa::kScalar;
      set_num_threads(1);
      std::vector<float> alone;
      for (std::size_t m = 0; m < kMost; ++m) {
        const Rows row(layout_for(format, kDepth, left), x.data() + m * kDepth, 1, kDepth);
        const std::vector<float> y = multiply(*kernels, matrix, row, Tactic::kDirect);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (const std::size_t num_rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 25, 64, 100}) {
        if (is_slow && num_rows > 16) continue;
        const std::size_t first = (kMost - num_rows) / 2;
        const Rows rows(layout_for(format, kDepth, left), x.data() + first * kDepth, num_rows, kDepth);
        const std::vector<float> expected(alone.begin() + static_cast<std::ptrdiff_t>(first * kCols),
                                          alone.begin() + static_cast<std::ptrdiff_t>((first + num_rows) * kCols));
        for (const Tactic tactic : {Tactic::kAuto, Tactic::kDirect, Tactic::kUnpacked}) {
          for (const int threads : {1, 2, 5}) {
            set_num_threads(threads);
            EXPECT(has_bits(multiply(*kernels, matrix, rows, tactic), expected),
                   "%s on %s: M=%zu, tactic %d, %d threads", format.name, isa_name(isa_of(*kernels)), num_rows,
                   static_cast<int>(tactic), threads);
          }
        }
      }
    }
  }
}

// Two rows that are not finite, beside one that is: their products are NaN, its bits are those it has alone.
TEST(what_is_not_finite_stays_in_its_row) {
  set_num_threads(2);
  constexpr std::size_t kDepth = 288;
  std::vector<float> x = normal(3 * kDepth, 41);
  x[5] = INFINITY;
  x[kDepth + 40] = NAN;
  for (const auto& [known, left] : pairings()) {
    const Format& format = *known;
    const Matrix matrix(format, 40, kDepth, 42);
    const Rows rows(layout_for(format, kDepth, left), x.data(), 3, kDepth);
    const Rows alone(layout_for(format, kDepth, left), x.data() + 2 * kDepth, 1, kDepth);
    for (const Kernels* kernels : all()) {
      if (!runs_here(*kernels)) continue;
      const std::vector<float> out = multiply(*kernels, matrix, rows);
      const bool is_finite = std::any_of(out.begin(), out.begin() + 80, [](float y) { return std::isfinite(y); });
      EXPECT(!is_finite, "%s on %s", format.name, isa_name(isa_of(*kernels)));
      EXPECT(has_bits({out.begin() + 80, out.end()}, multiply(*kernels, matrix, alone)), "%s on %s", format.name,
             isa_name(isa_of(*kernels)));
    }
  }
}

// Units at both ends of their range against the largest codes: the 16-bit sums of levels without VNNI must hold them.
TEST(the_largest_sums_do_not_saturate) {
  set_num_threads(1);
  constexpr std::size_t kDepth = 512;
  std::vector<float> x(2 * kDepth, 1.0F);
  std::fill(x.begin() + kDepth, x.end(), -1.0F);

  for (const auto& [known, left] : pairings()) {
    const Format& format = *known;
    if (!operand::is_quantised(left)) continue;
    for (const int code : {0, 1, 2, 3, 7, 15, 31, 63, 127, 128, 255}) {
      Codes codes{};
      const std::vector<std::uint8_t> all_codes(33 * kDepth, static_cast<std::uint8_t>(code));
      const std::vector<std::uint16_t> scales(33 * kDepth, half_of(0.5F));
      const std::vector<float> channel(33, 0.5F);
      const std::vector<std::uint8_t> subs(33 * kDepth, 3);
      codes.num_cols = 33;
      codes.depth = kDepth;
      codes.codes = all_codes.data();
      codes.scales = format.id == FormatId::kI8Channel ? static_cast<const void*>(channel.data()) : scales.data();
      codes.mins = codes.supers = codes.super_mins = scales.data();
      codes.zeros = codes.subs = codes.sub_mins = subs.data();
      Aligned panels(2 * panel_bytes(format, kDepth));
      try {
        pack(format, codes, panels.data());
      } catch (const std::invalid_argument&) {
        continue;  // more bits than the format has
      }
      const Weight weight{&format, panels.data(), 33};
      const Rows rows(layout_for(format, kDepth, left), x.data(), 2, kDepth);
      const std::size_t sum = 0;
      std::vector<float> expected;
      for (auto kernels = all().rbegin(); kernels != all().rend(); ++kernels) {
        if (!runs_here(**kernels)) continue;
        std::vector<float> out(2 * 33, NAN);
        run_all(**kernels, {{&weight, 1}, {&sum, 1}, rows.layout(), rows.data(), 2, store_to(out.data(), 33)});
        if (expected.empty()) expected = out;
        EXPECT(has_bits(out, expected), "%s on %s: code %d", format.name, isa_name(isa_of(**kernels)), code);
      }
    }
  }
}

TEST(the_list_of_products_is_ordered_and_ends_with_scalar) {
  for (std::size_t i = 1; i < all().size(); ++i) {
    EXPECT(isa_of(*all()[i]) < isa_of(*all()[i - 1]), "entry %zu", i);
  }
  EXPECT(isa_of(*all().back()) == Isa::kScalar, "%zu", all().size());
  EXPECT(isa_of(best(Isa::kScalar)) == Isa::kScalar, "%zu", all().size());
}

}  // namespace trivium::linear::tests
