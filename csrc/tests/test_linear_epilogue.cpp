// What becomes of a product's rows: epilogues against float64, and the same bits in any company.
#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "ops/linear/linear.h"
#include "tests/check.h"
#include "tests/test_linear_cases.h"

namespace trivium::linear::tests {
namespace {

bool runs_here(const Kernels& kernels) { return includes(detected_isa(), isa_of(kernels)); }

constexpr std::size_t kDepth = 288;
constexpr std::size_t kPartCols[] = {70, 33, 96};
constexpr std::size_t kAllCols = 70 + 33 + 96;

// Three parts of different formats that read two different sums of one operand.
struct Parts {
  Matrix q{format_named("i4_g32"), kPartCols[0], kDepth, 1};
  Matrix k{format_named("i8_g32"), kPartCols[1], kDepth, 2};
  Matrix v{format_named("i4m_g32"), kPartCols[2], kDepth, 3};
  Weight weights[3] = {q.weight(), k.weight(), v.weight()};
  std::size_t sums[3] = {1, 0, 2};
  operand::Layout layout{operand::Format::kQ8, kDepth, {{32, 128}, {32, 8}, {32, 0}}, 3};
};

Product product_of(const Parts& parts, const Rows& rows, const Epilogue& epilogue) {
  return {parts.weights, parts.sums, rows.layout(), rows.data(), rows.num_rows(), epilogue};
}

// [M, kAllCols] plain results.
std::vector<float> plain(const Kernels& kernels, const Parts& parts, const Rows& rows) {
  std::vector<float> out(rows.num_rows() * kAllCols, NAN);
  run_all(kernels, product_of(parts, rows, store_to(out.data(), kAllCols)));
  return out;
}

// Every level with every layout of what is written.
std::vector<std::pair<const Kernels*, operand::Layout>> with_each(std::span<const operand::Layout> layouts) {
  std::vector<std::pair<const Kernels*, operand::Layout>> found;
  for (const Kernels* kernels : all()) {
    for (const operand::Layout& layout : layouts) found.emplace_back(kernels, layout);
  }
  return found;
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

// Greatest difference, relative to the larger of the expected size and `floor`.
double worst_of(const std::vector<float>& out, const std::function<double(std::size_t)>& expected, double floor) {
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double wanted = expected(i);
    const double error = std::abs(static_cast<double>(out[i]) - wanted) / std::max(std::abs(wanted), floor);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace

TEST(parts_of_a_product_equal_products_of_their_own) {
  set_num_threads(2);
  const Parts parts;
  const std::vector<float> x = normal(14 * kDepth, 4);
  const Rows rows(parts.layout, x.data(), 14, kDepth);
  for (const Kernels* kernels : all()) {
    if (!runs_here(*kernels)) continue;
    const std::vector<float> out = plain(*kernels, parts, rows);
    std::size_t first = 0;
    for (const Matrix* matrix : {&parts.q, &parts.k, &parts.v}) {
      const Rows own(layout_for(*matrix->weight().format, kDepth), x.data(), 14, kDepth);
      const std::vector<float> alone = multiply(*kernels, *matrix, own);
      const std::size_t cols = matrix->weight().num_cols;
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < alone.size(); ++i) {
        const float value = out[i / cols * kAllCols + first + i % cols];
        wrong += std::memcmp(&value, &alone[i], sizeof value) == 0 ? 0 : 1;
      }
      EXPECT(wrong == 0, "%s: part at %zu: %zu wrong", isa_name(isa_of(*kernels)), first, wrong);
      first += cols;
    }
  }
}

TEST(bias_delta_scale_cap_and_residual_are_what_they_say) {
  set_num_threads(2);
  const Parts parts;
  for (const std::size_t num_rows : {1, 5, 13}) {
    const std::vector<float> x = normal(num_rows * kDepth, 5);
    const Rows rows(parts.layout, x.data(), num_rows, kDepth);
    const std::vector<float> bias = normal(kAllCols, 6);
    const std::vector<float> delta = normal(num_rows * (kAllCols + 3), 7);
    const std::vector<float> residual = normal(num_rows * kAllCols, 8);
    for (const Kernels* kernels : all()) {
      if (!runs_here(*kernels)) continue;
      const std::vector<float> y = plain(*kernels, parts, rows);
      for (int mask = 0; mask < 32; ++mask) {
        std::vector<float> out = residual;
        Epilogue epilogue = store_to(out.data(), kAllCols);
        epilogue.kind = (mask & 16) != 0 ? EpilogueKind::kAdd : EpilogueKind::kStore;
        epilogue.bias = (mask & 1) != 0 ? bias.data() : nullptr;
        epilogue.delta = (mask & 2) != 0 ? delta.data() : nullptr;
        epilogue.delta_stride = kAllCols + 3;
        epilogue.scale = (mask & 4) != 0 ? 0.375F : 1.0F;
        epilogue.soft_cap = (mask & 8) != 0 ? 5.0F : 0.0F;
        run_all(*kernels, product_of(parts, rows, epilogue));
        const double worst = worst_of(
            out,
            [&](std::size_t i) {
              double value = static_cast<double>(y[i]);
              if ((mask & 2) != 0) value += static_cast<double>(delta[i / kAllCols * (kAllCols + 3) + i % kAllCols]);
              if ((mask & 1) != 0) value += static_cast<double>(bias[i % kAllCols]);
              if ((mask & 4) != 0) value *= 0.375;
              if ((mask & 8) != 0) value = 5 * std::tanh(value / 5);
              return (mask & 16) != 0 ? value + static_cast<double>(residual[i]) : value;
            },
            1.0);
        EXPECT(worst < 4e-6, "%s: M=%zu mask=%d: off by %g", isa_name(isa_of(*kernels)), num_rows, mask, worst);
      }
    }
  }
}

// gate and up go through the activation into the operand of the next product: padded, quantised, with its sums.
TEST(a_gated_product_writes_the_operand_that_its_floats_would_make) {
  constexpr std::size_t kCols = 70;
  const Matrix gate(format_named("i4m_g32"), kCols, kDepth, 9);
  const Matrix up(format_named("i8_g32"), kCols, kDepth, 10);
  const Weight weights[2] = {gate.weight(), up.weight()};
  const std::size_t sums[2] = {0, 1};
  const operand::Layout layout{operand::Format::kQ8, kDepth, {{32, 0}, {32, 128}}, 2};
  const std::vector<float> bias = normal(2 * kCols, 11);
  for (const std::size_t num_rows : {1, 6, 13, 25}) {
    const std::vector<float> x = normal(num_rows * kDepth, 12);
    const Rows rows(layout, x.data(), num_rows, kDepth);
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      for (const operand::Format to :
           {operand::Format::kQ8, operand::Format::kQ8Wide, operand::Format::kBf16, operand::Format::kF32}) {
        operand::Layout next{to, 256, {{16, 0}, {16, 32}, {32, 8}}, 3};
        if (to == operand::Format::kQ8Wide) next = {to, 256, {{64, 0}, {64, 8}}, 2};
        Epilogue epilogue{};
        epilogue.kind = EpilogueKind::kGated;
        epilogue.scale = 1.0F;
        epilogue.bias = bias.data();
        epilogue.activation = activation;
        epilogue.operand_layout = &next;
        std::vector<std::uint32_t> expected;
        for (auto each = all().rbegin(); each != all().rend(); ++each) {
          const Kernels& kernels = **each;
          if (!runs_here(kernels)) continue;
          for (const int threads : {1, 3}) {
            set_num_threads(threads);
            std::vector<std::uint32_t> words(num_rows * next.row_words(), 0xDEADBEEFU);
            epilogue.operand = words.data();
            run_all(kernels, {weights, sums, layout, rows.data(), num_rows, epilogue});
            if (expected.empty()) expected = words;
            EXPECT(words == expected, "%s: M=%zu activation %d to %d, %d threads", isa_name(isa_of(kernels)), num_rows,
                   static_cast<int>(activation), static_cast<int>(to), threads);
          }
        }
        // The scalar level's words against float64, and against what the writer of operands makes of the same floats.
        const std::vector<float> g =
            multiply(*all().back(), gate, Rows(layout_for(*weights[0].format, kDepth), x.data(), num_rows, kDepth));
        const std::vector<float> u =
            multiply(*all().back(), up, Rows(layout_for(*weights[1].format, kDepth), x.data(), num_rows, kDepth));
        std::vector<float> values(next.depth);
        double worst = 0;
        for (std::size_t m = 0; m < num_rows; ++m) {
          operand::read_row(next, expected.data(), num_rows, m, values.data());
          double greatest = 1e-9;
          for (std::size_t n = 0; n < kCols; ++n)
            greatest = std::max(greatest, std::abs(static_cast<double>(values[n])));
          for (std::size_t n = 0; n < next.depth; ++n) {
            double wanted = 0;
            if (n < kCols) {
              const double gated = static_cast<double>(g[m * kCols + n]) + static_cast<double>(bias[n]);
              const double other = static_cast<double>(u[m * kCols + n]) + static_cast<double>(bias[kCols + n]);
              wanted = (activation == Activation::kSilu ? silu(gated) : gelu(gated)) * other;
            }
            worst = std::max(worst, std::abs(static_cast<double>(values[n]) - wanted) / greatest);
          }
        }
        const double bound = operand::is_quantised(to) ? 0.51 / 127 : to == operand::Format::kBf16 ? 0.005 : 2e-6;
        EXPECT(worst < bound, "M=%zu activation %d to %d: off by %g", num_rows, static_cast<int>(activation),
               static_cast<int>(to), worst);
      }
    }
  }
}

// gate and up each take their delta before the activation; rows of floats go beside the operand, or instead of it.
TEST(a_gated_product_takes_deltas_and_writes_floats_that_make_its_operand) {
  constexpr std::size_t kCols = 70;
  constexpr std::size_t kDeltaStride = 2 * kCols + 5;
  constexpr std::size_t kOutStride = kCols + 3;
  const Matrix gate(format_named("i4m_g32"), kCols, kDepth, 17);
  const Matrix up(format_named("i8_g32"), kCols, kDepth, 18);
  const Weight weights[2] = {gate.weight(), up.weight()};
  const std::size_t sums[2] = {0, 1};
  const operand::Layout layout{operand::Format::kQ8, kDepth, {{32, 0}, {32, 128}}, 2};
  const operand::Layout nexts[] = {{operand::Format::kQ8, 96, {{16, 32}, {32, 0}}, 2},
                                   {operand::Format::kQ8Wide, 128, {{64, 32}, {64, 0}}, 2}};
  const std::vector<float> bias = normal(2 * kCols, 19);
  set_num_threads(2);
  for (const std::size_t num_rows : {1, 5, 13}) {
    const std::vector<float> x = normal(num_rows * kDepth, 20);
    const std::vector<float> deltas = normal(num_rows * kDeltaStride, 21);
    const std::vector<float> nothing(num_rows * kDeltaStride, -0.0F);
    const Rows rows(layout, x.data(), num_rows, kDepth);
    for (const auto& [kernels, next] : with_each(nexts)) {
      if (!runs_here(*kernels)) continue;
      const char* level = isa_name(isa_of(*kernels));
      const auto floats_of = [&](const float* delta, std::uint32_t* operand) {
        std::vector<float> out(num_rows * kOutStride, 77.0F);
        Epilogue epilogue = store_to(out.data(), kOutStride);
        epilogue.kind = EpilogueKind::kGated;
        epilogue.bias = bias.data();
        epilogue.delta = delta;
        epilogue.delta_stride = kDeltaStride;
        epilogue.activation = Activation::kSilu;
        epilogue.operand_layout = operand == nullptr ? nullptr : &next;
        epilogue.operand = operand;
        run_all(*kernels, {weights, sums, layout, rows.data(), num_rows, epilogue});
        return out;
      };
      const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
      };
      std::vector<std::uint32_t> operand(num_rows * next.row_words(), 0xDEADBEEFU);
      const std::vector<float> out = floats_of(deltas.data(), operand.data());
      EXPECT(same(out, floats_of(deltas.data(), nullptr)), "%s: M=%zu: floats alone differ", level, num_rows);
      EXPECT(same(floats_of(nothing.data(), nullptr), floats_of(nullptr, nullptr)),
             "%s: M=%zu: negative zeros are not nothing", level, num_rows);
      const std::vector<float> g =
          multiply(*kernels, gate, Rows(layout_for(*weights[0].format, kDepth), x.data(), num_rows, kDepth));
      const std::vector<float> u =
          multiply(*kernels, up, Rows(layout_for(*weights[1].format, kDepth), x.data(), num_rows, kDepth));
      const double worst = worst_of(
          out,
          [&](std::size_t i) {
            const std::size_t m = i / kOutStride;
            const std::size_t n = i % kOutStride;
            if (n >= kCols) return 77.0;  // past the columns: not written
            const float* delta = deltas.data() + m * kDeltaStride;
            const double gated =
                static_cast<double>(g[m * kCols + n]) + static_cast<double>(delta[n]) + static_cast<double>(bias[n]);
            const double other = static_cast<double>(u[m * kCols + n]) + static_cast<double>(delta[kCols + n]) +
                                 static_cast<double>(bias[kCols + n]);
            return silu(gated) * other;
          },
          1.0);
      EXPECT(worst < 4e-6, "%s: M=%zu: off by %g", level, num_rows, worst);
      std::vector<float> packed(num_rows * kCols);
      for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = out[i / kCols * kOutStride + i % kCols];
      std::vector<std::uint32_t> expected(num_rows * next.row_words());
      operand::write_rows(packed.data(), num_rows, kCols, next, expected.data());
      EXPECT(operand == expected, "%s: M=%zu: the operand is not that of the floats", level, num_rows);
    }
  }
}

TEST(a_gated_row_has_the_same_words_in_any_company) {
  constexpr std::size_t kCols = 96;
  const Matrix gate(format_named("q4_k"), kCols, 512, 13);
  const Matrix up(format_named("q6_k"), kCols, 512, 14);
  const Weight weights[2] = {gate.weight(), up.weight()};
  const std::size_t sums[2] = {0, 1};
  const operand::Layout layout{operand::Format::kQ8, 512, {{32, 0}, {16, 32}}, 2};
  const operand::Layout nexts[] = {{operand::Format::kQ8, 96, {{32, 128}}, 1},
                                   {operand::Format::kQ8Wide, 128, {{64, 128}}, 1}};
  const std::vector<float> x = normal(40 * 512, 15);
  const auto words_of = [&](const Kernels& kernels, const operand::Layout& next, std::size_t first,
                            std::size_t num_rows) {
    const Rows rows(layout, x.data() + first * 512, num_rows, 512);
    std::vector<std::uint32_t> words(num_rows * next.row_words());
    Epilogue epilogue{};
    epilogue.kind = EpilogueKind::kGated;
    epilogue.scale = 1.0F;
    epilogue.operand_layout = &next;
    epilogue.operand = words.data();
    run_all(kernels, {weights, sums, layout, rows.data(), num_rows, epilogue});
    return words;
  };
  set_num_threads(2);
  for (const auto& [kernels, next] : with_each(nexts)) {
    if (!runs_here(*kernels)) continue;
    const std::vector<std::uint32_t> alone = words_of(*kernels, next, 17, 1);
    for (const std::size_t num_rows : {2, 5, 9, 14, 20}) {
      std::vector<std::uint32_t> words = words_of(*kernels, next, 17 - num_rows / 2, num_rows);
      const operand::Row row = operand::row_at(next, words.data(), num_rows, num_rows / 2);
      std::size_t wrong = 0;
      for (std::size_t w = 0; w < next.row_words(); ++w) wrong += row.words[w * row.stride] == alone[w] ? 0 : 1;
      EXPECT(wrong == 0, "%s: M=%zu: %zu words", isa_name(isa_of(*kernels)), num_rows, wrong);
    }
  }
}

TEST(products_that_are_not_well_formed_are_refused) {
  const Parts parts;
  const std::vector<float> x = normal(kDepth, 16);
  const Rows rows(parts.layout, x.data(), 1, kDepth);
  std::vector<float> out(kAllCols);
  const auto is_refused = [&](const std::function<void(Product&)>& spoil) {
    Product product = product_of(parts, rows, store_to(out.data(), kAllCols));
    spoil(product);
    try {
      check(product);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  const std::size_t swapped[3] = {0, 1, 2};
  const Weight empty{&format_named("i8_g32"), nullptr, 0};
  const Weight floats{&format_named("bf16"), nullptr, 32};
  EXPECT(!is_refused([](Product&) {}), "refused as it is");
  EXPECT(is_refused([](Product& p) { p.parts = {}; }), "no parts");
  EXPECT(is_refused([&](Product& p) { p.sums = {swapped, 3}; }), "sums of other formats");
  EXPECT(is_refused([&](Product& p) { p.sums = {swapped, 2}; }), "too few sums");
  EXPECT(is_refused([&](Product& p) { p.layout.depth = 280; }), "not whole blocks");
  EXPECT(is_refused([&](Product& p) { p.layout.format = operand::Format::kQ8Wide; }), "scales of 32 with groups of 64");
  EXPECT(is_refused([&](Product& p) {
           p.parts = {&empty, 1};
           p.sums = {swapped, 1};
         }),
         "no columns");
  EXPECT(is_refused([&](Product& p) {
           p.parts = {&floats, 1};
           p.sums = {swapped, 1};
         }),
         "another operand");
  EXPECT(is_refused([](Product& p) { p.epilogue.kind = EpilogueKind::kGated; }), "gated with three parts");
}

}  // namespace trivium::linear::tests
