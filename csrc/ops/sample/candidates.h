// The tokens of one row that may still be drawn, and what shortens the list. Included by the plain files of this op.
//
// Rank order, everywhere: greater value first, then lower id. Ids ascend in every list.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/sample/passes.h"
#include "ops/sample/sample.h"
#include "ops/sample/scratch.h"

namespace trivium::sample {

template <class T>
inline constexpr T kLowestFinite = std::numeric_limits<T>::lowest();
template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }
constexpr std::size_t num_maxima(std::size_t size) { return ceil_div(size, kChunk) * kMaximaPerChunk; }

// A beginning of rank order: all values above `value`, and the first `ties` that equal it.
template <class T>
struct Cut {
  T value;
  std::size_t ties;
};

// Values of -inf may be among the tokens: they weigh nothing and no filter keeps them.
template <class T>
struct Candidates {
  const PassTable& table;
  const Passes<T>& passes;  // of the table
  Lists<T>& lists;
  Scratch& scratch;
  Values<T> tokens;
  Scale scale;
  int next = 0;  // of the two lists, the one to write to

  std::int32_t id_at(std::size_t place) const {
    return tokens.ids == nullptr ? static_cast<std::int32_t>(place) : tokens.ids[place];
  }
  T* next_values() { return lists.values[next].at_least(tokens.size + kOverrun); }
  std::int32_t* next_ids() { return lists.ids[next].at_least(tokens.size + kOverrun); }

  // Takes the first `size` of the next lists for the tokens.
  void take(std::size_t size) {
    tokens = {lists.values[next].at_least(0), lists.ids[next].at_least(0), size, nullptr};
    next = 1 - next;
  }
};

// Copies to `values` and `ids` what the cut keeps of them (both may be the source), and returns how many.
template <class T>
std::size_t apply_cut(const Values<T>& from, Cut<T> cut, T* values, std::int32_t* ids) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < from.size; ++i) {
    const bool is_tie = from.values[i] == cut.value;
    if (is_tie && cut.ties == 0) continue;
    if (is_tie) --cut.ties;
    if (!is_tie && !(from.values[i] > cut.value)) continue;
    values[count] = from.values[i];
    ids[count++] = from.ids[i];
  }
  return count;
}

// A value that at least `count` of the tokens reach, as great as the maxima tell without looking at the tokens: folded
// to a few times `count` groups, the count-th greatest of the groups' maxima.
template <class T>
T reached_by(const Values<T>& tokens, std::size_t count, Buffer<T>& scratch) {
  const std::size_t groups = num_maxima(tokens.size);
  if (tokens.maxima == nullptr || count >= groups) return kLowestFinite<T>;
  const std::size_t fold = std::max<std::size_t>(1, groups / std::max<std::size_t>(4 * count, 64));
  const std::size_t rows = groups / kMaximaPerChunk;
  T* folded = scratch.at_least(groups);
  std::size_t size = 0;
  for (std::size_t row = 0; row < rows; row += fold, size += kMaximaPerChunk) {
    T* group = folded + size;
    std::copy_n(tokens.maxima + row * kMaximaPerChunk, kMaximaPerChunk, group);
    for (std::size_t r = row + 1; r < std::min(row + fold, rows); ++r) {
      const T* more = tokens.maxima + r * kMaximaPerChunk;
      for (std::size_t i = 0; i < kMaximaPerChunk; ++i) group[i] = more[i] > group[i] ? more[i] : group[i];
    }
  }
  T* nth = folded + (count - 1);
  std::nth_element(folded, nth, folded + size, [](T a, T b) { return a > b; });
  return std::max(*nth, kLowestFinite<T>);
}

// A beginning of rank order, in ascending order of ids: at least `count` tokens, or all that are not -inf.
template <class T>
Values<T> leading(const Passes<T>& passes, Lists<T>& lists, const Values<T>& tokens, std::size_t count) {
  const T low = reached_by(tokens, count, lists.folded);
  T* values = lists.head.at_least(tokens.size + kOverrun);
  std::int32_t* ids = lists.head_ids.at_least(tokens.size + kOverrun);
  return {values, ids, passes.collect(tokens, low, kInfinity<T>, values, ids), nullptr};
}

// The first `count` of rank order, in that order; fewer where the others are -inf.
template <class T>
Ranked<T>* ranked(const Passes<T>& passes, Lists<T>& lists, const Values<T>& tokens, std::size_t& count) {
  const Values<T> head = leading(passes, lists, tokens, count);
  Ranked<T>* order = lists.ranked.at_least(head.size);
  for (std::size_t i = 0; i < head.size; ++i) order[i] = {head.values[i], head.ids[i]};
  count = std::min(count, head.size);
  const auto precedes = [](const Ranked<T>& a, const Ranked<T>& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  };
  if (4 * count > head.size) {
    std::sort(order, order + head.size, precedes);
  } else {
    std::partial_sort(order, order + count, order + head.size, precedes);
  }
  return order;
}

// Stages of the contract, in filters.cpp, typical.cpp and draw.cpp.
template <class T>
void keep_top_k(Candidates<T>& candidates, std::size_t top_k);
template <class T>
void keep_top_p(Candidates<T>& candidates, double top_p);
template <class T>
void keep_min_p(Candidates<T>& candidates, double min_p);
template <class T>
void keep_typical(Candidates<T>& candidates, double typical_p);

// Place of the token that `random` falls on. `ends`: running sums behind each block (Passes::total) where they are
// known, else null.
template <class T>
std::size_t draw(const Candidates<T>& candidates, double random, const double* ends);

// Edits of single logits [V], edits.cpp.
void edit(double* logits, std::size_t vocab_size, const Row& row, const RowLists& lists, Buffer<std::uint32_t>& marks);

}  // namespace trivium::sample
