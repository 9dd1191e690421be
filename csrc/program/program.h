// A program: what a plan becomes at run time. A flat list of instructions over one arena, run by a team in one call.
//
//   forward(step):   instr 0 | barrier | instr 1 | barrier | … | last        every member runs its share of each
//
// An instruction holds offsets into the arena, pointers to weights and to the KV stores, and numbers; all memory exists
// before the first step. What changes from step to step is in Step and Frame.
//
// Letters: T tokens, B requests, R wanted rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/team.h"
#include "ops/attention/pages.h"

namespace trivium::program {

// Pages of one KV group's requests.
struct PageTable {
  const std::int32_t* pages;  // [B, pages_per_request], -1 where a page is not held
  std::size_t pages_per_request;
};

// Frequencies of one rope, chosen per request.
struct RopeChoice {
  const std::int32_t* variants;  // [B] row of `frequencies`
  const float* frequencies;      // [variants, half]
};

// One step's arrays; they outlive the call and nothing else. The caller has checked them.
struct Step {
  std::size_t num_tokens;
  std::size_t num_requests;
  std::size_t num_rows;
  const std::int32_t* token_ids;   // [T]
  const std::int32_t* positions;   // [T]
  const std::int32_t* starts;      // [B + 1]
  const std::int32_t* kv_lens;     // [B]
  const std::int32_t* logit_rows;  // [R]
  const float* embeds;             // [T, M] or null
  std::span<const PageTable> page_tables;
  std::span<const RopeChoice> ropes;
  std::span<const std::vector<attention::PageCopy>> copies;  // per KV group, executed before anything else
  const std::int32_t* adapters = nullptr;                    // [B] slot, or -1: none; null: none for all
};

// Which of a step's sizes counts a buffer's rows.
enum class Rows : std::uint8_t { kTokens, kWanted };

inline constexpr std::size_t kNowhere = SIZE_MAX;

struct Frame {
  const Step& step;
  std::byte* arena;
  std::byte* scratch;  // this member's

  template <class T>
  T* at(std::size_t offset) const {
    return offset == kNowhere ? nullptr : reinterpret_cast<T*>(arena + offset);
  }
  std::size_t count(Rows rows) const { return rows == Rows::kTokens ? step.num_tokens : step.num_rows; }
};

class Instruction {
 public:
  virtual ~Instruction() = default;
  // Work that one member does alone before the others start, such as planning who reads which pages. May allocate while
  // it meets its largest step so far, never afterwards.
  virtual void prepare(const Step&, int) {}  // for so many members
  // This member's share. Ends without a barrier; the program adds one.
  virtual void run(const Frame& frame, Team& team) const = 0;
  // Bytes of scratch per member.
  virtual std::size_t scratch_bytes() const { return 0; }
};

// Instructions [begin, end) of a program.
struct Part {
  std::size_t begin;
  std::size_t end;
};

class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void add(std::unique_ptr<Instruction> instruction);
  std::size_t size() const { return instructions_.size(); }
  // The KV stores, one per group, whose pages steps may ask to copy.
  void keep(std::vector<attention::Store> stores) { stores_ = std::move(stores); }
  // Allocates scratch for as many members as the pool has; called once, after the last add.
  void seal();
  // Runs a part; one that begins at 0 copies pages first. Where `seconds` [size()] is given, adds to it each
  // instruction's wall time, barrier included. Throws std::invalid_argument before `seal`.
  void run(const Step& step, std::byte* arena, Part part, double* seconds);

 private:
  std::byte* scratch_of(int member);

  void copy_pages(const Step& step, Team& team) const;

  std::vector<std::unique_ptr<Instruction>> instructions_;
  std::vector<attention::Store> stores_;
  std::vector<std::byte> scratch_;
  std::size_t scratch_bytes_ = 0;  // of one member
};

}  // namespace trivium::program
