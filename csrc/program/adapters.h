// The adapters that are loaded, and which rows of a step use which: shared by all instructions of one program.
//
//   slot of request b     -1: none, else of an adapter that is loaded
//   order                 | rows of slot 2 | rows of slot 0 | …        every group a run; once for T rows, once for R
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/adapter/adapter.h"
#include "program/program.h"

namespace trivium::program {

inline constexpr std::size_t kMaxAdapters = 4096;

// A product that adapters may add to.
struct AdaptedProduct {
  std::size_t depth;  // K
  std::size_t width;  // N
};

// An adapter as steps read it, one entry per product; whoever made it may let go of it while a slot holds it.
using PreparedAdapter = std::shared_ptr<const std::vector<adapter::Factors>>;

class Adapters {
 public:
  // Rows of a step, sorted by adapter.
  struct RowOrder {
    std::vector<std::uint32_t> order;
    std::vector<adapter::Group> groups;
  };

  // For steps of up to `max_rows` rows. `max_sites`: most products of one instruction.
  Adapters(std::size_t max_rows, std::size_t max_sites, std::vector<AdaptedProduct> products);
  Adapters(const Adapters&) = delete;
  Adapters& operator=(const Adapters&) = delete;

  std::span<const AdaptedProduct> products() const { return products_; }
  std::size_t max_sites() const { return max_sites_; }

  // Puts an adapter, which has one entry per product, into a slot that is free; nothing is copied. Takes all memory
  // that steps will need. Throws std::invalid_argument for a slot that is taken or past kMaxAdapters, and for another
  // number of products.
  void load(std::size_t slot, PreparedAdapter factors);
  // Frees a slot. Throws std::invalid_argument where it holds nothing.
  void unload(std::size_t slot);
  bool holds(std::int32_t slot) const {
    return slot >= 0 && static_cast<std::size_t>(slot) < slots_.size() &&
           slots_[static_cast<std::size_t>(slot)] != nullptr;
  }

  // Sorts a step's rows; once per step, by one member, before any instruction runs. The step's slots have been checked.
  void plan(const Step& step);
  const RowOrder& rows(Rows rows) const { return rows == Rows::kTokens ? tokens_ : wanted_; }
  // Whether any adapter of the planned step adds to any of these products; where none does, nothing is written for
  // them.
  bool touches(std::span<const adapter::Site> sites) const;

  std::size_t max_rank() const { return max_rank_; }  // padded
  // [max_rows, max_sites * max_rank]
  float* hidden() { return hidden_.data(); }

 private:
  void sort(const Step& step, Rows rows, RowOrder& found) const;

  std::size_t max_rows_;
  std::size_t max_sites_;
  std::vector<AdaptedProduct> products_;
  std::vector<PreparedAdapter> slots_;  // null: free
  std::size_t max_rank_ = 0;
  std::vector<float> hidden_;
  RowOrder tokens_;
  RowOrder wanted_;
  std::vector<std::uint8_t> is_touched_;  // by product
  std::vector<std::size_t> requests_;     // of the step, by slot
};

}  // namespace trivium::program
