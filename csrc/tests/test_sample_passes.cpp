// Each pass of every level against a plain loop, on exactly sized buffers so that sanitizers see any overrun.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ops/sample/passes.h"
#include "tests/check.h"
#include "tests/sample_oracle.h"

namespace trivium::sample {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 7, 16, 31, 33, 127, 128, 129, 255, 256, 257, 600, 5000};

template <class T>
std::vector<T> values_of(std::size_t size, float spread, bool has_impossible) {
  std::mt19937 engine(static_cast<unsigned>(size) + 5);
  std::normal_distribution<float> draw(0.0F, spread);
  std::vector<T> x(size);
  for (T& value : x) {
    value = static_cast<T>(std::round(draw(engine) * 8.0F) / 8.0F);
    if (has_impossible && engine() % 3 == 0) value = -std::numeric_limits<T>::infinity();
  }
  return x;
}

// Calls fn(passes, name, x) for every level, both types and all sizes.
template <class Fn>
void for_each_case(Fn fn) {
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    for (const std::size_t size : kSizes) {
      for (const bool has_impossible : {false, true}) {
        fn(kernel.table().f32, kernel.name, values_of<float>(size, 3.0F, has_impossible));
        fn(kernel.table().f64, kernel.name, values_of<double>(size, 3.0F, has_impossible));
      }
    }
  }
}

template <class T>
std::vector<T> maxima_of(const Passes<T>& passes, const std::vector<T>& x) {
  std::vector<T> maxima((x.size() + kChunk - 1) / kChunk * kMaximaPerChunk);
  bool has_nan = true;
  passes.greatest(x.data(), x.size(), maxima.data(), &has_nan);
  return maxima;
}

template <class T>
T greatest_of(const std::vector<T>& x) {
  return x.empty() ? -std::numeric_limits<T>::infinity() : *std::max_element(x.begin(), x.end());
}

bool has_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

Scale scale_of(double greatest, double temperature) { return {std::isfinite(greatest) ? greatest : 0.0, temperature}; }

}  // namespace

TEST(the_greatest_value_and_the_maxima_of_every_chunk_are_found) {
  for_each_case([](const auto& passes, const char* name, const auto& x) {
    using T = std::decay_t<decltype(x[0])>;
    std::vector<T> maxima((x.size() + kChunk - 1) / kChunk * kMaximaPerChunk);
    bool has_nan = true;
    const T most = passes.greatest(x.data(), x.size(), maxima.data(), &has_nan);
    EXPECT(!has_nan && most == greatest_of(x), "%s: N=%zu", name, x.size());
    for (std::size_t i = 0; i < maxima.size(); ++i) {
      T wanted = -std::numeric_limits<T>::infinity();
      const std::size_t first = i / kMaximaPerChunk * kChunk + i % kMaximaPerChunk;
      for (std::size_t p = first; p < first / kChunk * kChunk + kChunk && p < x.size(); p += kMaximaPerChunk) {
        wanted = std::max(wanted, x[p]);
      }
      EXPECT(maxima[i] == wanted, "%s: N=%zu, maximum %zu", name, x.size(), i);
    }
    for (std::size_t p = 0; p < x.size(); p += 1 + x.size() / 40) {
      std::vector<T> bad = x;
      bad[p] = std::numeric_limits<T>::quiet_NaN();
      passes.greatest(bad.data(), bad.size(), maxima.data(), &has_nan);
      EXPECT(has_nan, "%s: NaN at %zu of %zu", name, p, x.size());
    }
  });
}

TEST(the_first_of_equal_values_is_found) {
  for_each_case([](const auto& passes, const char* name, const auto& x) {
    const auto wanted = std::find(x.begin(), x.end(), greatest_of(x)) - x.begin();
    EXPECT(passes.find(x.data(), x.size(), greatest_of(x)) == static_cast<std::size_t>(wanted), "%s: N=%zu", name,
           x.size());
  });
}

TEST(values_in_a_range_are_collected_in_order_with_their_ids) {
  for_each_case([](const auto& passes, const char* name, const auto& x) {
    using T = std::decay_t<decltype(x[0])>;
    const std::vector<T> maxima = maxima_of(passes, x);
    std::vector<std::int32_t> own(x.size() + kOverrun);
    for (std::size_t i = 0; i < x.size(); ++i) own[i] = static_cast<std::int32_t>(3 * i + 1);
    for (const T low : {static_cast<T>(-100), static_cast<T>(1), static_cast<T>(7)}) {
      for (const T high : {std::numeric_limits<T>::infinity(), static_cast<T>(4)}) {
        for (const bool has_own : {false, true}) {
          std::vector<T> values(x.size() + kOverrun);
          std::vector<std::int32_t> ids(x.size() + kOverrun);
          const Values<T> from{x.data(), has_own ? own.data() : nullptr, x.size(), has_own ? nullptr : maxima.data()};
          const std::size_t count = passes.collect(from, low, high, values.data(), ids.data());
          const std::size_t without_ids = passes.collect(from, low, high, values.data(), nullptr);
          std::size_t wanted = 0;
          bool is_right = count == without_ids;
          for (std::size_t i = 0; i < x.size(); ++i) {
            if (!(low <= x[i] && x[i] <= high)) continue;
            is_right = is_right && wanted < count && values[wanted] == x[i] &&
                       ids[wanted] == (has_own ? own[i] : static_cast<std::int32_t>(i));
            ++wanted;
          }
          EXPECT(is_right && count == wanted, "%s: N=%zu: %zu, not %zu", name, x.size(), count, wanted);
        }
      }
    }
  });
}

TEST(values_whose_bit_is_set_are_picked_and_bits_of_no_value_ignored) {
  for_each_case([](const auto& passes, const char* name, const auto& x) {
    using T = std::decay_t<decltype(x[0])>;
    std::mt19937 engine(9);
    for (const unsigned share : {1U, 2U, 40U}) {
      std::vector<std::uint32_t> words((x.size() + 31) / 32, 0);
      for (std::size_t i = 0; i < words.size() * 32; ++i) {
        if (engine() % share == 0) words[i / 32] |= 1U << (i % 32);
      }
      std::vector<T> values(x.size() + kOverrun);
      std::vector<std::int32_t> ids(x.size() + kOverrun);
      const std::size_t count = passes.pick(x.data(), x.size(), words.data(), values.data(), ids.data());
      std::size_t wanted = 0;
      bool is_right = true;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if ((words[i / 32] >> (i % 32) & 1) == 0) continue;
        is_right = is_right && values[wanted] == x[i] && ids[wanted] == static_cast<std::int32_t>(i);
        ++wanted;
      }
      EXPECT(is_right && count == wanted, "%s: N=%zu: %zu, not %zu", name, x.size(), count, wanted);
    }
  });
}

TEST(values_above_a_bound_and_equal_to_it_are_counted) {
  for_each_case([](const auto& passes, const char* name, const auto& x) {
    using T = std::decay_t<decltype(x[0])>;
    const std::vector<T> maxima = maxima_of(passes, x);
    for (const T bound : {static_cast<T>(0), static_cast<T>(6.5), greatest_of(x)}) {
      for (const T* skip : {static_cast<const T*>(nullptr), maxima.data()}) {
        const Values<T> from{x.data(), nullptr, x.size(), skip};
        const auto above = std::count_if(x.begin(), x.end(), [&](T value) { return value > bound; });
        EXPECT(passes.count_above(from, bound) == static_cast<std::size_t>(above), "%s: N=%zu", name, x.size());
        if (bound == -std::numeric_limits<T>::infinity()) continue;
        const auto equal = std::count(x.begin(), x.end(), bound);
        EXPECT(passes.count_equal(from, bound) == static_cast<std::size_t>(equal), "%s: N=%zu", name, x.size());
      }
    }
  });
}

TEST(weights_have_the_bits_of_the_contract_and_are_summed_from_the_left) {
  for_each_case([](const auto& passes, const char* name, auto x) {
    using T = std::decay_t<decltype(x[0])>;
    if (x.size() > 40) x[3] = static_cast<T>(-1e6), x[9] = std::numeric_limits<T>::lowest();
    for (const double temperature : {1.0, 0.7, 0.004}) {
      const Scale scale = scale_of(static_cast<double>(greatest_of(x)), temperature);
      std::vector<double> weights(x.size()), scaled(x.size()), ends((x.size() + kBlock - 1) / kBlock);
      passes.weigh(x.data(), x.size(), scale, scaled.data(), weights.data());
      const double total = passes.total(x.data(), x.size(), scale, ends.data());
      double running = 0.0;
      bool is_right = true;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double distance = (static_cast<double>(x[i]) - scale.greatest) / temperature;
        const double weight = oracle::weight_of(distance);
        is_right = is_right && has_bits(weights[i], weight) && scaled[i] == distance;
        running += weight;
        if (i % kBlock == kBlock - 1 || i + 1 == x.size()) is_right = is_right && has_bits(ends[i / kBlock], running);
      }
      EXPECT(is_right && has_bits(total, running), "%s: N=%zu, temperature %g", name, x.size(), temperature);
    }
  });
}

TEST(estimated_weights_and_sums_are_within_their_bounds) {
  for_each_case([](const auto& passes, const char* name, const auto& x) {
    for (const double temperature : {1.0, 0.7, 0.02}) {
      const Scale scale = scale_of(static_cast<double>(greatest_of(x)), temperature);
      std::vector<double> exact(x.size()), weights(x.size()), sums((x.size() + kBlock - 1) / kBlock);
      passes.weigh(x.data(), x.size(), scale, nullptr, exact.data());
      passes.guess(x.data(), x.size(), scale, weights.data());
      passes.guess_sums(x.data(), x.size(), scale, sums.data());
      double worst = 0.0;
      double total = 0.0;
      double difference = 0.0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (exact[i] > 1e-290) worst = std::max(worst, std::fabs(weights[i] / exact[i] - 1.0));
        if (exact[i] <= 1e-290) worst = std::max(worst, weights[i] > 1e-280 ? 1.0 : 0.0);
        total += exact[i];
        difference += exact[i];
        if (i % kBlock == kBlock - 1 || i + 1 == x.size()) difference -= sums[i / kBlock];
      }
      EXPECT(worst < 1.5e-12, "%s: N=%zu, temperature %g: %g", name, x.size(), temperature, worst);
      EXPECT(std::fabs(difference) <= 0.5 * slack_of(x.size()) * total, "%s: N=%zu: %g of %g", name, x.size(),
             difference, total);
    }
  });
}

TEST(rough_sums_are_within_their_bound_and_leave_out_what_is_not_below_the_limit) {
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    const PassTable& table = kernel.table();
    for (const float spread : {0.01F, 1.0F, 5.0F, 60.0F}) {
      for (const std::size_t size : {1, 300, 5000, 60000}) {
        std::vector<float> x = values_of<float>(size, spread, size == 5000);
        for (std::size_t i = 0; i < size; ++i) x[i] = x[i] * 1.0173F + 0.001F * static_cast<float>(i % 97);  // no ties
        const float greatest = greatest_of(x);
        for (const float limit : {std::numeric_limits<float>::infinity(), greatest - 2.0F}) {
          const Scale scale = scale_of(static_cast<double>(greatest), 0.9);
          std::vector<double> exact(size), sums((size + kBlock - 1) / kBlock);
          table.f32.weigh(x.data(), size, scale, nullptr, exact.data());
          table.rough_sums(x.data(), size, scale, limit, sums.data());
          double total = 0.0;
          double difference = 0.0;
          double worst = 0.0;
          for (std::size_t i = 0; i < size; ++i) {
            total += exact[i];
            difference += x[i] < limit ? exact[i] : 0.0;
            if (i % kBlock == kBlock - 1 || i + 1 == size) difference -= sums[i / kBlock];
            if (i % kBlock == kBlock - 1) worst = std::max(worst, std::fabs(difference));
          }
          worst = std::max(worst, std::fabs(difference));
          EXPECT(worst <= 0.4 * kRoughSlack * total, "%s: N=%zu, spread %g: %g of %g", kernel.name, size,
                 static_cast<double>(spread), worst, total);
        }
      }
    }
  }
}

TEST(weights_are_spread_over_buckets_as_defined) {
  for_each_case([](const auto& passes, const char* name, const auto& x) {
    const Scale scale = scale_of(static_cast<double>(greatest_of(x)), 0.8);
    for (const Buckets& buckets : {Buckets{0.0, 16.0}, Buckets{-2.0, 100.0}, Buckets{-16.0, 0.3}}) {
      std::vector<double> sums(kBuckets), wanted(kBuckets), weights(x.size());
      passes.spread(x.data(), x.size(), scale, buckets, sums.data());
      passes.guess(x.data(), x.size(), scale, weights.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double power = std::max((static_cast<double>(x[i]) - scale.greatest) * scale.rate(), kLowestPower);
        const double place = std::clamp((buckets.top - power) * buckets.per_power, 0.0, kBuckets - 1.0);
        wanted[static_cast<std::size_t>(place)] += weights[i];
      }
      for (std::size_t b = 0; b < kBuckets; ++b) {
        EXPECT(std::fabs(sums[b] - wanted[b]) <= 1e-12 * wanted[b] + 1e-290, "%s: N=%zu, bucket %zu: %g, not %g", name,
               x.size(), b, sums[b], wanted[b]);
      }
    }
  });
}

TEST(the_list_of_levels_is_ordered_and_ends_with_scalar) {
  for (std::size_t i = 1; i < all().size(); ++i) EXPECT(all()[i].isa < all()[i - 1].isa, "entry %zu", i);
  EXPECT(all().back().isa == Isa::kScalar, "%s", all().back().name);
  EXPECT(best(Isa::kScalar).isa == Isa::kScalar, "%s", best(Isa::kScalar).name);
}

}  // namespace trivium::sample
