// What one member of a team does of a layer's attention.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/attention/kernel.h"
#include "ops/attention/plan.h"
#include "ops/attention/walk.h"

namespace trivium::attention {

// A member's scratch, cut in parts that begin on cache lines.
struct Scratch {
  std::byte* units = nullptr;
  float* folded = nullptr;   // state of a chain's segments so far
  float* segment = nullptr;  // state of the segment at hand
  std::uint32_t* unpacked = nullptr;
  std::int32_t* first_seen = nullptr;
  std::int32_t* last_seen = nullptr;
  std::size_t num_bytes = 0;

  // Without memory: sizes only.
  Scratch(std::size_t width, std::byte* memory);
};

class Member {
 public:
  // Alone, a member runs all chains whole, whatever the plan cuts.
  Member(const Kernel& kernel, Work& work, const Args& args, bool is_alone, void* scratch);

  // Runs all chains from one cut to another: whole ones are written, parts of others left in their records.
  void run(const Cut& from, const Cut& to);

  // Merges rows [begin, end) of a split from left to right, and writes them.
  void merge(const Split& split, std::size_t begin, std::size_t end);

  std::size_t num_rows(const Split& split) const;

 private:
  // One bundle of one KV head.
  struct Chain {
    const Bundle* bundle;
    std::size_t kv_head;
    std::size_t first_head;  // query heads [first_head, first_head + num_heads) of every token
    std::size_t num_heads;
    std::size_t num_rows;
  };
  Chain chain_at(std::size_t index) const;
  std::size_t token_of(const Chain& chain, std::size_t row) const;

  const Split* split_of(std::size_t chain) const;
  State state_in(float* memory) const;
  Pages pages_of(const Run& run, std::size_t kv_head) const;
  void load_rows();
  void open_chain(const Place& place);
  void open_segment(const Place& place);
  void attend(const Place& place, const Place* next);
  void close_segment();
  void close_chain();
  void finish(std::size_t row, const State& state) const;

  const Functions run_;
  Work& work_;
  const Args& args_;
  const bool is_alone_;
  const HeadLayout layout_;
  const Scratch scratch_;
  // The chain at hand, its split where it is cut, and its state so far.
  Chain chain_{};
  const Split* split_ = nullptr;
  bool is_first_part_ = true;
  State folded_{};
  // The segment at hand.
  State state_{};
  bool is_to_fold_ = false;
};

}  // namespace trivium::attention
