// Passes that compare and select, on any lanes. Internal linkage: included by ISA files only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/sample/passes.h"

namespace trivium::sample {
namespace {

// A copy of the last values of x, from x[first] on, that goes on with -inf up to `width`. Not inlined: it would take
// registers from the loops that need it once.
template <class T>
[[gnu::noinline]] const T* padded_run(const T* x, std::size_t size, std::size_t first, std::size_t width, T* buffer) {
  for (std::size_t i = 0; i < width; ++i) {
    buffer[i] = first + i < size ? x[first + i] : static_cast<T>(-__builtin_inf());
  }
  return buffer;
}

// The `width` values from x[first] on, in `buffer` where x ends before.
template <class T>
inline const T* whole_run(const T* x, std::size_t size, std::size_t first, std::size_t width, T* buffer) {
  if (size - first >= width) return x + first;
  return padded_run(x, size, first, width, buffer);
}

template <class L, class T>
T greatest(const T* x, std::size_t size, T* maxima, bool* has_nan) {
  using V = typename L::template Lanes<T>;
  constexpr std::size_t kPieces = kMaximaPerChunk > V::kLanes ? kMaximaPerChunk / V::kLanes : 1;
  alignas(64) T buffer[kChunk];
  const T lowest = static_cast<T>(-__builtin_inf());
  V best[kPieces];
  for (V& piece : best) piece = V::all(lowest);
  unsigned nan_bits = 0;
  for (std::size_t first = 0; first < size; first += kChunk, maxima += kMaximaPerChunk) {
    const T* from = whole_run(x, size, first, kChunk, buffer);
#pragma GCC unroll 16
    for (std::size_t p = 0; p < kPieces; ++p) {
      const T* lanes = from + p * V::kLanes;
      V most = V::load(lanes);
      nan_bits |= unordered(most, V::load(lanes + kMaximaPerChunk));
#pragma GCC unroll 8
      for (std::size_t i = kMaximaPerChunk; i < kChunk; i += kMaximaPerChunk) {
        const V next = V::load(lanes + i);
        if (i % (2 * kMaximaPerChunk) == 0) nan_bits |= unordered(next, V::load(lanes + i + kMaximaPerChunk));
        most = max(next, most);
      }
      most.store(maxima + p * V::kLanes);
      best[p] = max(most, best[p]);
    }
  }
  *has_nan = nan_bits != 0;
  T lanes[kMaximaPerChunk];
  for (std::size_t p = 0; p < kPieces; ++p) best[p].store(lanes + p * V::kLanes);
  T most = lowest;
  for (const T lane : lanes) most = lane > most ? lane : most;
  return most;
}

template <class L, class T>
std::size_t find(const T* x, std::size_t size, T wanted) {
  using V = typename L::template Lanes<T>;
  const V all = V::all(wanted);
  std::size_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) {
    const unsigned bits = equal(V::load(x + i), all);
    if (bits != 0) return i + static_cast<std::size_t>(__builtin_ctz(bits));
  }
  while (i < size && x[i] != wanted) ++i;
  return i;
}

// Whether the chunk that begins at x[first] may have a value that `passes(lanes)` gives bits for.
template <class V, class T, class Fn>
inline bool may_hold(const Values<T>& x, std::size_t first, Fn passes) {
  if (x.maxima == nullptr) return true;
  const T* maxima = x.maxima + first / kChunk * kMaximaPerChunk;
  unsigned bits = 0;
  for (std::size_t i = 0; i < kMaximaPerChunk; i += V::kLanes) bits |= passes(V::load(maxima + i));
  return bits != 0;
}

enum class Ids { kNone, kOwn, kPlaces };

template <class L, class T, Ids kind>
std::size_t collect_with(const Values<T>& x, T low, T high, T* values, std::int32_t* ids) {
  using V = typename L::template Lanes<T>;
  const V lowest = V::all(low);
  const V highest = V::all(high);
  alignas(64) T buffer[kChunk];
  std::size_t count = 0;
  for (std::size_t first = 0; first < x.size; first += kChunk) {
    if (!may_hold<V>(x, first, [&](V lanes) { return at_least(lanes, lowest); })) continue;
    const T* from = whole_run(x.values, x.size, first, kChunk, buffer);
    // Without a branch on `bits`: in the middle of a row it could not be foretold.
    const std::size_t end = x.size - first < kChunk ? x.size - first : kChunk;
    for (std::size_t i = 0; i < end; i += V::kLanes) {
      const V lanes = V::load(from + i);
      const unsigned bits = at_least(lanes, lowest) & at_least(highest, lanes);
      compress(lanes, bits, values + count);
      if (kind == Ids::kOwn) compress_ids(lanes, x.ids + first + i, bits, ids + count);
      if (kind == Ids::kPlaces) compress_range(lanes, first + i, bits, ids + count);
      count += static_cast<std::size_t>(__builtin_popcount(bits));
    }
  }
  return count;
}

template <class L, class T>
std::size_t collect(const Values<T>& x, T low, T high, T* values, std::int32_t* ids) {
  if (ids == nullptr) return collect_with<L, T, Ids::kNone>(x, low, high, values, ids);
  if (x.ids != nullptr) return collect_with<L, T, Ids::kOwn>(x, low, high, values, ids);
  return collect_with<L, T, Ids::kPlaces>(x, low, high, values, ids);
}

template <class L, class T>
std::size_t pick(const T* x, std::size_t size, const std::uint32_t* words, T* values, std::int32_t* ids) {
  using V = typename L::template Lanes<T>;
  constexpr std::size_t kWord = 32;
  alignas(64) T buffer[kWord];
  std::size_t count = 0;
  for (std::size_t first = 0; first < size; first += kWord) {
    std::uint32_t word = words[first / kWord];
    if (size - first < kWord) word &= (1U << (size - first)) - 1;
    if (word == 0) continue;
    const T* from = whole_run(x, size, first, kWord, buffer);
    for (std::size_t i = 0; i < kWord; i += V::kLanes) {
      const unsigned bits = (word >> i) & ((1U << V::kLanes) - 1);
      if (bits == 0) continue;
      const V lanes = V::load(from + i);
      compress(lanes, bits, values + count);
      compress_range(lanes, first + i, bits, ids + count);
      count += static_cast<std::size_t>(__builtin_popcount(bits));
    }
  }
  return count;
}

// Counts the bits that `passes(lanes)` gives over all values; a chunk without such a bit among its maxima, by `holds`,
// has none. Missing values count as -inf.
template <class V, class T, class Holds, class Passes>
inline std::size_t count_bits(const Values<T>& x, Holds holds, Passes passes) {
  alignas(64) T buffer[kChunk];
  std::size_t count = 0;
  for (std::size_t first = 0; first < x.size; first += kChunk) {
    if (!may_hold<V>(x, first, holds)) continue;
    const T* from = whole_run(x.values, x.size, first, kChunk, buffer);
    for (std::size_t i = 0; i < kChunk; i += V::kLanes) {
      count += static_cast<std::size_t>(__builtin_popcount(passes(V::load(from + i))));
    }
  }
  return count;
}

template <class L, class T>
std::size_t count_above(const Values<T>& x, T bound) {
  using V = typename L::template Lanes<T>;
  const V limit = V::all(bound);
  const auto is_above = [&](V lanes) { return above(lanes, limit); };
  return count_bits<V>(x, is_above, is_above);
}

template <class L, class T>
std::size_t count_equal(const Values<T>& x, T wanted) {
  using V = typename L::template Lanes<T>;
  const V all = V::all(wanted);
  return count_bits<V>(x, [&](V lanes) { return at_least(lanes, all); }, [&](V lanes) { return equal(lanes, all); });
}

}  // namespace
}  // namespace trivium::sample
