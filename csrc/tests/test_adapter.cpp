// What adapters add: against float64 within its bound, the same bits on every level, in any company, on any team.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "ops/adapter/adapter.h"
#include "tests/check.h"
#include "tests/draw.h"

namespace trivium::adapter {
namespace {

using trivium::tests::normal;

// Matrices of one adapter for one product; rank 0: it leaves the product alone.
struct Drawn {
  Drawn(std::size_t drawn_rank, std::size_t depth, std::size_t width, unsigned seed)
      : rank(drawn_rank),
        a(normal(rank * depth, seed)),
        b(normal(width * rank, seed + 1)),
        scale(0.25F + 0.5F * static_cast<float>(seed % 5)) {
    if (rank > 0) factors = make_factors(a.data(), b.data(), rank, depth, width, scale);
  }
  std::size_t rank;
  std::vector<float> a, b;
  float scale;
  Factors factors;
};

constexpr float kUnwritten = 1e30F;

// Three products over one x, adapters of other ranks each, and a row's adapter drawn for every row.
struct Case {
  Case(std::size_t rows, std::size_t case_depth, std::vector<std::size_t> case_widths, std::vector<std::size_t> ranks,
       unsigned seed)
      : depth(case_depth), widths(std::move(case_widths)), x(normal(rows * depth, seed)) {
    for (std::size_t s = 0; s < ranks.size(); ++s) {
      std::vector<Factors> factors;
      for (std::size_t p = 0; p < widths.size(); ++p) {
        // The last adapter leaves the first product alone.
        const bool is_left = s + 1 == ranks.size() && p == 0 && widths.size() > 1;
        drawn.emplace_back(is_left ? 0 : ranks[s] + p, depth, widths[p], seed + static_cast<unsigned>(10 * s + p));
        factors.push_back(drawn.back().factors);
      }
      adapters.push_back(std::move(factors));
    }
    std::mt19937 engine(seed);
    for (std::size_t m = 0; m < rows; ++m) slots.push_back(static_cast<int>(engine() % (ranks.size() + 1)) - 1);
  }

  const Drawn& of(std::size_t slot, std::size_t product) const { return drawn[slot * widths.size() + product]; }

  std::size_t out_width() const {
    std::size_t total = 0;
    for (const std::size_t width : widths) total += width;
    return total;
  }

  // [rows, all columns] of some of the rows.
  std::vector<float> run(const Kernel& kernel, const std::vector<std::size_t>& rows) const {
    std::vector<float> given;
    for (const std::size_t m : rows) {
      for (std::size_t k = 0; k < depth; ++k) given.push_back(x[m * depth + k]);
    }
    std::vector<std::uint32_t> order;
    std::vector<Group> groups;
    for (int slot = -1; slot < static_cast<int>(adapters.size()); ++slot) {
      const std::size_t begin = order.size();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (slots[rows[i]] == slot) order.push_back(static_cast<std::uint32_t>(i));
      }
      const Factors* factors = slot < 0 ? nullptr : adapters[static_cast<std::size_t>(slot)].data();
      if (order.size() > begin) groups.push_back({factors, begin, order.size()});
    }
    std::vector<Site> sites;
    std::size_t max_rank = 0;
    for (std::size_t p = 0; p < widths.size(); ++p) sites.push_back({p, widths[p]});
    for (const Drawn& each : drawn) max_rank = std::max(max_rank, padded_rank(each.rank));
    std::vector<float> hidden(rows.size() * sites.size() * max_rank, std::numeric_limits<float>::quiet_NaN());
    std::vector<float> out(rows.size() * out_width(), kUnwritten);
    const Args args{sites, depth, order, groups, max_rank, given.data(), hidden.data(), out.data()};
    run_team([&](Team& team) { adapter::run(kernel, args, team); });
    return out;
  }

  std::vector<std::size_t> every_row() const {
    std::vector<std::size_t> rows(slots.size());
    for (std::size_t m = 0; m < rows.size(); ++m) rows[m] = m;
    return rows;
  }

  std::size_t depth;
  std::vector<std::size_t> widths;
  std::vector<float> x;
  std::vector<Drawn> drawn;
  std::vector<std::vector<Factors>> adapters;
  std::vector<int> slots;
};

std::vector<Case> cases() {
  std::vector<Case> made;
  made.emplace_back(1, 1, std::vector<std::size_t>{1}, std::vector<std::size_t>{1}, 1);
  made.emplace_back(5, 3, std::vector<std::size_t>{7}, std::vector<std::size_t>{2}, 2);
  made.emplace_back(9, 67, std::vector<std::size_t>{33, 5, 300}, std::vector<std::size_t>{8, 1, 17}, 3);
  made.emplace_back(40, 576, std::vector<std::size_t>{576, 192, 192}, std::vector<std::size_t>{16, 64, 5, 30}, 4);
  made.emplace_back(3, 1537, std::vector<std::size_t>{520, 520}, std::vector<std::size_t>{4}, 5);
  std::mt19937 engine(6);
  const auto up_to = [&](std::size_t most) { return 1 + engine() % most; };
  for (unsigned i = 0; i < 30; ++i) {
    std::vector<std::size_t> widths(up_to(3));
    std::vector<std::size_t> ranks(up_to(4));
    for (std::size_t& width : widths) width = up_to(290);
    for (std::size_t& rank : ranks) rank = up_to(40);
    made.emplace_back(up_to(20), up_to(200), widths, ranks, 100 + i);
  }
  return made;
}

bool same_bits(const float* one, const float* other, std::size_t size) {
  return std::memcmp(one, other, size * sizeof(float)) == 0;
}

}  // namespace

TEST(adapters_add_what_the_formula_says_within_its_bound) {
  set_num_threads(2);
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    for (const Case& c : cases()) {
      const std::vector<float> out = c.run(kernel, c.every_row());
      double worst = 0;  // in units of the bound
      std::size_t wrong = 0;
      for (std::size_t m = 0; m < c.slots.size(); ++m) {
        const float* row = out.data() + m * c.out_width();
        for (std::size_t p = 0; p < c.widths.size(); row += c.widths[p], ++p) {
          const Drawn* drawn = c.slots[m] < 0 ? nullptr : &c.of(static_cast<std::size_t>(c.slots[m]), p);
          for (std::size_t n = 0; n < c.widths[p]; ++n) {
            if (drawn == nullptr || drawn->rank == 0) {
              wrong += row[n] == 0.0F && std::signbit(row[n]) ? 0 : 1;
              continue;
            }
            double value = 0;
            double size = 0;
            for (std::size_t j = 0; j < drawn->rank; ++j) {
              double hidden = 0;
              double hidden_size = 0;
              for (std::size_t k = 0; k < c.depth; ++k) {
                const double term =
                    static_cast<double>(drawn->a[j * c.depth + k]) * static_cast<double>(c.x[m * c.depth + k]);
                hidden += term;
                hidden_size += std::abs(term);
              }
              const double b = static_cast<double>(drawn->b[n * drawn->rank + j]);
              value += b * hidden;
              size += std::abs(b) * hidden_size;
            }
            const double scale = static_cast<double>(drawn->scale);
            const double bound = (static_cast<double>(c.depth) / 4 + static_cast<double>(drawn->rank) + 5) *
                                 std::ldexp(1.0, -24) * scale * size;
            worst = std::max(worst, std::abs(static_cast<double>(row[n]) - scale * value) / bound);
          }
        }
      }
      EXPECT(worst <= 1, "%s: M=%zu K=%zu: %g of the bound", kernel.name, c.slots.size(), c.depth, worst);
      EXPECT(wrong == 0, "%s: M=%zu K=%zu: %zu elements without adapter are not -0", kernel.name, c.slots.size(),
             c.depth, wrong);
    }
  }
}

TEST(adapters_give_the_same_bits_on_every_level_and_team) {
  for (const Case& c : cases()) {
    set_num_threads(1);
    const std::vector<float> expected = c.run(all().back(), c.every_row());
    for (const Kernel& kernel : all()) {
      if (!includes(detected_isa(), kernel.isa)) continue;
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        const std::vector<float> out = c.run(kernel, c.every_row());
        EXPECT(same_bits(out.data(), expected.data(), out.size()), "%s: M=%zu K=%zu, %d threads", kernel.name,
               c.slots.size(), c.depth, threads);
      }
    }
  }
}

TEST(what_an_adapter_adds_to_a_row_does_not_depend_on_its_company) {
  set_num_threads(2);
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    for (const Case& c : cases()) {
      const std::vector<float> together = c.run(kernel, c.every_row());
      for (std::size_t m = 0; m < c.slots.size(); m += 3) {
        const std::vector<float> alone = c.run(kernel, {m});
        EXPECT(same_bits(alone.data(), together.data() + m * c.out_width(), c.out_width()), "%s: row %zu of %zu, K=%zu",
               kernel.name, m, c.slots.size(), c.depth);
      }
    }
  }
}

TEST(adapters_of_a_step_without_rows_do_nothing) {
  const Case c(3, 8, {4}, {2}, 7);
  for (const Kernel& kernel : all()) {
    if (includes(detected_isa(), kernel.isa)) EXPECT(c.run(kernel, {}).empty(), "%s", kernel.name);
  }
}

}  // namespace trivium::adapter
