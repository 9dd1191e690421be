// From logits to tokens: the sampling contract of trivium/sampling/pipeline.py, to the bit, for all rows of a step.
//
// That text defines every stage, its order and its arithmetic; this implementation gives the same tokens, logprobs and
// errors at every instruction set and thread count. What is specific to it: decisions are taken on estimates where
// these are clear, and on the exact sums where they are not (passes.h), so they are always those of the exact sums.
//
// Letters: R rows, V tokens of the vocabulary, K most alternatives of any row. Threads: rows are spread over the pool;
// scratch memory belongs to a thread, is reused, and only grows. Nothing needs alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/span2d.h"
#include "ops/sample/passes.h"

namespace trivium::sample {

// What one row asks; the fields of the same names in SampleRow and SamplingParams. Packed by
// trivium/sampling/native.py.
//
//   byte  0 temperature   8 top_p   16 min_p   24 typical_p   32 repetition   40 presence   48 frequency   56 seed
//        64 choice  68 position  72 prompt_len  76 top_k  80 target  84 num_logprobs  88 mask_row  92 wants
struct Row {
  double temperature;
  double top_p;
  double min_p;
  double typical_p;
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  std::uint64_t seed;
  std::uint32_t choice;
  std::uint32_t position;
  std::uint32_t prompt_len;
  std::int32_t top_k;         // 0 and -1: all
  std::int32_t target;        // -1: draw
  std::int32_t num_logprobs;  // -1: none
  std::int32_t mask_row;      // -1: none
  std::uint32_t wants;        // kWantsProcessed, kWantsChosen

  bool is_greedy() const { return temperature < 1e-5; }
  bool has_penalty() const { return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0; }
};
static_assert(sizeof(Row) == 96);

inline constexpr std::uint32_t kWantsProcessed = 1;  // logprobs of the distribution drawn from
inline constexpr std::uint32_t kWantsChosen = 2;     // Outputs::chosen

// The lists of one row, which most rows do not have.
struct RowLists {
  std::span<const std::int32_t> bias_ids;
  std::span<const double> biases;  // one per bias id; the ids differ
  std::span<const std::int32_t> held_back;
  std::span<const std::int32_t> history;          // known tokens, a run that ends before `position` …
  std::size_t history_start = 0;                  // … and begins here: what the row's penalties and bad words look at
  std::span<const std::int32_t> spelling_tokens;  // bad words, one behind the other
  std::span<const std::int32_t> spelling_lengths;

  bool is_empty() const { return bias_ids.empty() && held_back.empty() && spelling_lengths.empty(); }
};

// Grammar masks: bit t % 32 of words[mask_row * stride + t / 32] allows token t.
struct Masks {
  const std::uint32_t* words;
  std::size_t rows;
  std::size_t stride;  // at least ceil(V / 32)
};

enum class Error : std::int32_t {
  kNone = 0,
  kNan = 1,            // a logit is NaN
  kInfinite = 2,       // a logit is +inf
  kMinusInfinite = 3,  // all logits are -inf
  kForbidden = 4,      // mask, bias, bad words and min_tokens leave nothing
};

struct Outputs {
  std::int32_t* token_ids;  // [R]; -1 for rows with an error
  std::int32_t* errors;     // [R] Error
  double* chosen;           // [R] raw logprob of the token, 0 where not wanted or failed; null if no row wants it
  // Of rows with num_logprobs >= 0; null if there is none:
  double* logprobs;        // [R]
  std::int64_t* ranks;     // [R] from 1
  std::int32_t* num_tops;  // [R] alternatives written
  std::int32_t* top_ids;   // [R, K]
  double* top_logprobs;    // [R, K]
  std::size_t top_stride;  // K
};

// Reported for a token to which the model gives no probability.
inline constexpr double kImpossible = -9999.0;

// Samples every row of logits [R, V], which are not changed. `lists` is empty or has one entry per row. Returns how
// many rows have an error.
//
// Throws std::invalid_argument, before anything is written, where a token id is not below V, a mask row not below
// masks.rows, num_logprobs above K, or sizes do not fit; std::bad_alloc.
std::size_t sample(const Kernel& kernel, Span2d<const float> logits, std::span<const Row> rows,
                   std::span<const RowLists> lists, const Masks& masks, const Outputs& out);

}  // namespace trivium::sample
