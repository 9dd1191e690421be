// Passes that weigh, on any lanes: the contract's arithmetic, and the estimates. Internal linkage: ISA files only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/sample/passes.h"
#include "ops/sample/select_inl.h"

namespace trivium::sample {
namespace {

// Adding it to |x| < 2^51 rounds x to a whole number, ties to even, and leaves that number in the low bits.
constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52

// The contract's constants (trivium/sampling/softmax.py).
constexpr double kLowest = -708.0;
constexpr double kLn2High = 0.6931471803691238;
constexpr double kLn2Low = 1.9082149292705877e-10;
constexpr double kInverseFactorials[13] = {
    1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,      1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};

// Several vectors that go through the same operations side by side: one alone waits for the result of each.
template <class M, std::size_t kSize>
struct Pack {
  M at[kSize];

  static constexpr std::size_t kLanes = kSize * M::kLanes;

  // x[0] … x[kLanes - 1]
  template <class T>
  static Pack load(const T* x) {
    Pack pack;
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSize; ++i) pack.at[i] = M::load(x + i * M::kLanes);
    return pack;
  }
  void store(double* to) const {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSize; ++i) at[i].store(to + i * M::kLanes);
  }
  // fn(x) for every vector x.
  template <class Fn>
  Pack map(Fn fn) const {
    Pack result;
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSize; ++i) result.at[i] = fn(at[i]);
    return result;
  }
  template <class Fn>
  Pack map(const Pack& other, Fn fn) const {
    Pack result;
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSize; ++i) result.at[i] = fn(at[i], other.at[i]);
    return result;
  }
};

template <class L>
using PackOf = Pack<typename L::Math, L::kPack>;

// exp(x), x <= 0, exactly as the contract rounds it. Calls meanwhile(k), k = 11 … 1, for work that fits in between.
template <class P, class Fn>
inline P weights_of(const P& x, Fn meanwhile) {
  using M = decltype(x.at[0] + x.at[0]);
  const P clamped = x.map([](M v) { return max(v, M::all(kLowest)); });
  const P shifted = clamped.map([](M v) { return v * M::all(kLog2E) + M::all(kRounder); });
  const P high = clamped.map(shifted, [](M v, M s) { return v - (s - M::all(kRounder)) * M::all(kLn2High); });
  const P rest = high.map(shifted, [](M v, M s) { return v - (s - M::all(kRounder)) * M::all(kLn2Low); });
  P power = rest.map([](M r) { return r * M::all(kInverseFactorials[12]); });
#pragma GCC unroll 16
  for (int k = 11; k >= 1; --k) {
    power = power.map(rest, [&](M p, M r) { return (p + M::all(kInverseFactorials[k])) * r; });
    meanwhile(k);
  }
  power = power.map(shifted, [](M p, M s) { return times_power(p + M::all(kInverseFactorials[0]), s); });
  return power.map(x, [](M p, M v) { return zero_below(p, v, M::all(kLowest)); });
}

// 2^y, y <= 0. The polynomial interpolates 2^f at the Chebyshev points of [-1/2, 1/2]: within 1.1e-12.
template <class P>
inline P guess_powers(const P& y) {
  using M = decltype(y.at[0] + y.at[0]);
  constexpr double kTerms[9] = {0.9999999999999997,     0.6931471805459343,    0.24022650695821055,
                                0.055504109412010456,   0.009618129157656703,  0.0013333450573018062,
                                0.00015403457039410448, 1.531007807039615e-05, 1.325497460306718e-06};
  const P shifted = y.map([](M v) { return v + M::all(kRounder); });
  const P rest = y.map(shifted, [](M v, M s) { return v - (s - M::all(kRounder)); });
  P power = rest.map([&](M r) { return fused(r, M::all(kTerms[8]), M::all(kTerms[7])); });
#pragma GCC unroll 8
  for (int k = 6; k >= 0; --k) power = power.map(rest, [&](M p, M r) { return fused(p, r, M::all(kTerms[k])); });
  return power.map(shifted, [](M p, M s) { return times_power(p, s); });
}

// The exponents of estimates.
template <class P, class T, class M>
inline P powers_at(const T* x, M greatest, M rate) {
  return P::load(x).map([&](M v) { return max((v - greatest) * rate, M::all(kLowestPower)); });
}

// The arguments of the contract's exponential.
template <class P, bool kDivides, class T, class M>
inline P scaled_at(const T* x, M greatest, M temperature) {
  return P::load(x).map([&](M v) {
    if constexpr (kDivides) return (v - greatest) / temperature;
    return v - greatest;
  });
}

// Stores the first `count` lanes; not inlined for the reason of padded_run.
template <class P>
[[gnu::noinline]] void store_some(const P& pack, std::size_t count, double* to) {
  alignas(64) double lanes[P::kLanes];
  pack.store(lanes);
  for (std::size_t i = 0; i < count; ++i) to[i] = lanes[i];
}
template <class P>
inline void store_first(const P& pack, std::size_t count, double* to) {
  if (count >= P::kLanes) return pack.store(to);
  store_some(pack, count, to);
}

template <class L, class T, bool kDivides>
void weigh_scaled(const T* x, std::size_t size, const Scale& scale, double* scaled, double* weights) {
  using M = typename L::Math;
  using P = PackOf<L>;
  const M greatest = M::all(scale.greatest);
  const M temperature = M::all(scale.temperature);
  alignas(64) T buffer[P::kLanes];
  for (std::size_t i = 0; i < size; i += P::kLanes) {
    const P distances = scaled_at<P, kDivides>(whole_run(x, size, i, P::kLanes, buffer), greatest, temperature);
    store_first(weights_of(distances, [](int) {}), size - i, weights + i);
    if (scaled != nullptr) store_first(distances, size - i, scaled + i);
  }
}

template <class L, class T>
void weigh(const T* x, std::size_t size, const Scale& scale, double* scaled, double* weights) {
  if (scale.temperature == 1.0) return weigh_scaled<L, T, false>(x, size, scale, scaled, weights);
  weigh_scaled<L, T, true>(x, size, scale, scaled, weights);
}

// The sum is one chain of additions, each waiting for the one before. The weights of a block are made while those of
// the block before it are added, a few additions between the steps of the polynomial, so that neither waits alone.
template <class L, class T, bool kDivides>
double total_scaled(const T* x, std::size_t size, const Scale& scale, double* ends) {
  using M = typename L::Math;
  using P = PackOf<L>;
  const M greatest = M::all(scale.greatest);
  const M temperature = M::all(scale.temperature);
  alignas(64) T buffer[kBlock];
  alignas(64) double weights[2][kBlock] = {};
  double running = 0.0;
  std::size_t block = 0;
  for (std::size_t first = 0; first < size; first += kBlock, ++block) {
    const T* from = whole_run(x, size, first, kBlock, buffer);
    double* made = weights[block % 2];
    const double* added = weights[1 - block % 2];
    for (std::size_t i = 0; i < kBlock; i += P::kLanes) {
      const auto add = [&](int k) {
        const auto step = static_cast<std::size_t>(11 - k);
#pragma GCC unroll 8
        for (std::size_t j = step * P::kLanes / 11; j < (step + 1) * P::kLanes / 11; ++j) running += added[i + j];
      };
      weights_of(scaled_at<P, kDivides>(from + i, greatest, temperature), add).store(made + i);
    }
    if (block > 0) ends[block - 1] = running;
  }
  if (block == 0) return 0.0;
  for (const double weight : weights[(block - 1) % 2]) running += weight;
  ends[block - 1] = running;
  return running;
}

template <class L, class T>
double total(const T* x, std::size_t size, const Scale& scale, double* ends) {
  if (scale.temperature == 1.0) return total_scaled<L, T, false>(x, size, scale, ends);
  return total_scaled<L, T, true>(x, size, scale, ends);
}

template <class L, class T>
void guess(const T* x, std::size_t size, const Scale& scale, double* weights) {
  using M = typename L::Math;
  using P = PackOf<L>;
  const M greatest = M::all(scale.greatest);
  const M rate = M::all(scale.rate());
  alignas(64) T buffer[P::kLanes];
  for (std::size_t i = 0; i < size; i += P::kLanes) {
    const T* from = whole_run(x, size, i, P::kLanes, buffer);
    store_first(guess_powers(powers_at<P>(from, greatest, rate)), size - i, weights + i);
  }
}

template <class L, class T>
void guess_sums(const T* x, std::size_t size, const Scale& scale, double* sums) {
  using M = typename L::Math;
  using P = PackOf<L>;
  const M greatest = M::all(scale.greatest);
  const M rate = M::all(scale.rate());
  alignas(64) T buffer[kBlock];
  for (std::size_t first = 0; first < size; first += kBlock) {
    const T* from = whole_run(x, size, first, kBlock, buffer);
    P parts;
    for (M& part : parts.at) part = M::all(0.0);
    for (std::size_t i = 0; i < kBlock; i += P::kLanes) {
      parts = parts.map(guess_powers(powers_at<P>(from + i, greatest, rate)), [](M a, M b) { return a + b; });
    }
    M all = parts.at[0];
    for (std::size_t i = 1; i < L::kPack; ++i) all = all + parts.at[i];
    sums[first / kBlock] = sum(all);
  }
}

// 2^(d * rate) in float. The argument is cut into a whole number and a rest before it is rounded, so that its error
// does not grow with d. The polynomial is within 2^-22.5.
template <class P, class R>
inline P rough_powers(const P& distances, R rate, R rest_of_rate) {
  constexpr float kTerms[6] = {1.00000012F, 0.69314718F, 0.24022107F, 0.05550357F, 0.0096760318F, 0.0013390863F};
  const R shift = R::all(12582912.0F);  // 1.5 * 2^23, as kRounder
  const P shifted = distances.map([&](R d) { return d * rate + shift; });
  const P near = distances.map(shifted, [&](R d, R s) { return fused(d, rate, shift - s); });
  const P rest = near.map(distances, [&](R n, R d) { return fused(d, rest_of_rate, n); });
  P power = rest.map([&](R r) { return fused(r, R::all(kTerms[5]), R::all(kTerms[4])); });
#pragma GCC unroll 8
  for (int k = 3; k >= 0; --k) power = power.map(rest, [&](R p, R r) { return fused(p, r, R::all(kTerms[k])); });
  return power.map(shifted, [](R p, R s) { return times_power(p, s); });
}

// Twice as many values at a time as in double.
template <class L, bool kIsLimited>
void rough_sums_below(const float* x, std::size_t size, const Scale& scale, float limit, double* sums) {
  using R = typename L::Rough;
  using P = Pack<R, 4>;
  const R greatest = R::all(static_cast<float>(scale.greatest));
  const auto near_rate = static_cast<float>(scale.rate());
  const R rate = R::all(near_rate);
  const R rest_of_rate = R::all(static_cast<float>(scale.rate() - static_cast<double>(near_rate)));
  const R lowest = R::all(static_cast<float>(kLowestRoughPower / scale.rate()));
  const R end = R::all(limit);
  alignas(64) float buffer[kBlock];
  for (std::size_t first = 0; first < size; first += kBlock) {
    const float* from = whole_run(x, size, first, kBlock, buffer);
    P parts;
    for (R& part : parts.at) part = R::all(0.0F);
    for (std::size_t i = 0; i < kBlock; i += P::kLanes) {
      const P values = P::load(from + i);
      P powers = rough_powers(values.map([&](R v) { return max(v - greatest, lowest); }), rate, rest_of_rate);
      if constexpr (kIsLimited) powers = powers.map(values, [&](R p, R v) { return only_below(p, v, end); });
      parts = parts.map(powers, [](R a, R b) { return a + b; });
    }
    sums[first / kBlock] = (sum(parts.at[0]) + sum(parts.at[1])) + (sum(parts.at[2]) + sum(parts.at[3]));
  }
}

template <class L>
void rough_sums(const float* x, std::size_t size, const Scale& scale, float limit, double* sums) {
  if (limit > scale.greatest) return rough_sums_below<L, false>(x, size, scale, limit, sums);
  rough_sums_below<L, true>(x, size, scale, limit, sums);
}

// Each of kTables places in a row adds to a column of its own, so that equal buckets side by side do not wait for each
// other's sum; and the columns of a bucket are one cache line, since sums 4096 bytes apart would wait as if equal.
//
//   tables[bucket]   | place 0 | place 1 | … | place 7 |
//
// Most tokens of a trained model are so unlikely that whole vectors fall into the last bucket: these are summed apart.
template <class L, class T>
void spread(const T* x, std::size_t size, const Scale& scale, const Buckets& buckets, double* sums) {
  using M = typename L::Math;
  using P = PackOf<L>;
  constexpr std::size_t kTables = 8;
  constexpr std::size_t kStep = P::kLanes > kTables ? P::kLanes : kTables;
  alignas(64) double tables[kBuckets][kTables] = {};
  const M greatest = M::all(scale.greatest);
  const M rate = M::all(scale.rate());
  const M top = M::all(buckets.top);
  const M per_power = M::all(buckets.per_power);
  const M last = M::all(static_cast<double>(kBuckets - 1));
  M rest = M::all(0.0);
  alignas(64) T buffer[kStep];
  for (std::size_t first = 0; first < size; first += kStep) {
    const T* from = whole_run(x, size, first, kStep, buffer);
    for (std::size_t i = 0; i < kStep; i += P::kLanes) {
      const P powers = powers_at<P>(from + i, greatest, rate);
      const P weights = guess_powers(powers);
      const P spots = powers.map([&](M y) { return min((top - y) * per_power, last); });
#pragma GCC unroll 8
      for (std::size_t v = 0; v < L::kPack; ++v) {
        if (are_equal(spots.at[v], last)) {
          rest = rest + weights.at[v];
          continue;
        }
        alignas(64) double added[M::kLanes];
        alignas(64) std::int32_t places[M::kLanes];
        weights.at[v].store(added);
        max(spots.at[v], M::all(0.0)).store_whole(places);
#pragma GCC unroll 8
        for (std::size_t l = 0; l < M::kLanes; ++l) tables[places[l]][(i + v * M::kLanes + l) % kTables] += added[l];
      }
    }
  }
  for (std::size_t b = 0; b < kBuckets; ++b) {
    double all = 0.0;
    for (const double part : tables[b]) all += part;
    sums[b] = all;
  }
  sums[kBuckets - 1] += sum(rest);
}

template <class L, class T>
constexpr Passes<T> passes_of() {
  return {greatest<L, T>, find<L, T>,  collect<L, T>, pick<L, T>,       count_above<L, T>, count_equal<L, T>,
          weigh<L, T>,    total<L, T>, guess<L, T>,   guess_sums<L, T>, spread<L, T>};
}

template <class L>
constexpr PassTable kTable = {passes_of<L, float>(), passes_of<L, double>(), rough_sums<L>};

}  // namespace
}  // namespace trivium::sample
