// One row through all stages of the contract. Included by sample.cpp and row.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/sample/candidates.h"

namespace trivium::sample {

// Where a row's logprobs go; pointers are of this row.
struct Report {
  double* logprob;
  std::int64_t* rank;
  std::int32_t* num_tops;
  std::int32_t* top_ids;
  double* top_logprobs;
};

// Writes the logprob of the token at `place` and of the num_logprobs most likely ones; `total` is the exact sum of the
// weights.
template <class T>
void describe(const Candidates<T>& candidates, std::size_t place, double total, std::size_t num_logprobs,
              const Report& report);

// The log of the probability of a value, finite and at most 0.
double logprob_of(double value, const Scale& scale, double total);

// What is known of the model's own distribution.
class RawRow {
 public:
  RawRow(const PassTable& passes, Scratch& scratch, const float* logits, std::size_t vocab_size)
      : passes_(passes), scratch_(scratch), logits_(logits), vocab_size_(vocab_size) {}

  // Looks at all logits; the other functions need that it found no error.
  Error look();

  Candidates<float> candidates() const;

  // Exact running sums behind each block at temperature 1, and the last of them. Summed when first asked for.
  const double* ends();
  double total() { return ends()[ceil_div(vocab_size_, kBlock) - 1]; }

 private:
  const PassTable& passes_;
  Scratch& scratch_;
  const float* logits_;
  std::size_t vocab_size_;
  float greatest_ = 0.0F;
  const float* maxima_ = nullptr;
  const double* ends_ = nullptr;
};

class RowSampler {
 public:
  RowSampler(const PassTable& passes, Scratch& scratch, const float* logits, std::size_t vocab_size, const Row& row,
             const RowLists& lists, const std::uint32_t* mask)
      : passes_(passes),
        scratch_(scratch),
        logits_(logits),
        vocab_size_(vocab_size),
        row_(row),
        lists_(lists),
        mask_(mask),
        raw_(passes, scratch, logits, vocab_size) {}

  // Draws, or takes the target; fills `report` if the row has num_logprobs.
  Error run(const Report& report);

  std::int32_t token_id() const { return token_id_; }
  double raw_logprob();

 private:
  template <class T>
  Error draw_from(const Passes<T>& passes, Lists<T>& lists, const T* logits, const T* maxima, double greatest,
                  const Report& report);
  template <class T>
  std::size_t choose(Candidates<T>& candidates);
  void report_raw(const Report& report);
  bool wants_report() const { return row_.num_logprobs >= 0; }
  bool wants_processed() const { return (row_.wants & kWantsProcessed) != 0; }
  bool wants_raw() const { return (wants_report() && !wants_processed()) || (row_.wants & kWantsChosen) != 0; }

  const PassTable& passes_;
  Scratch& scratch_;
  const float* logits_;
  std::size_t vocab_size_;
  const Row& row_;
  const RowLists& lists_;
  const std::uint32_t* mask_;
  RawRow raw_;
  std::int32_t token_id_ = -1;
};

}  // namespace trivium::sample
