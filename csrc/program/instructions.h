// The instructions that programs are made of, one class per op. Fields ending in _at are offsets into the arena.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "ops/adapter/adapter.h"
#include "ops/attention/attention.h"
#include "ops/attention/plan.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/operand/operand.h"
#include "ops/rope_kv/rope_kv.h"
#include "program/adapters.h"
#include "program/program.h"

namespace trivium::program {

// out[t] = table[token_ids[t]] * scale, or row t of `embeds` where that does not begin with NaN.
struct Embed final : Instruction {
  linear::Weight table;
  std::size_t width;
  float scale;
  std::size_t out_at;

  void run(const Frame& frame, Team& team) const override;
};

// See norm::Args. `rows` counts those of a and b; of the step's, the wanted ones may be gathered.
struct Norm final : Instruction {
  std::size_t a_at;
  std::size_t b_at = kNowhere;
  const float* b_weight = nullptr;
  const float* weight = nullptr;
  Rows rows = Rows::kTokens;
  bool gathers = false;
  std::size_t width;
  float eps;
  float b_eps = 0.0F;
  std::size_t sum_at = kNowhere;
  std::size_t floats_at = kNowhere;
  operand::Layout layout{};
  std::size_t operand_at = kNowhere;

  void run(const Frame& frame, Team& team) const override;
  std::size_t scratch_bytes() const override;
};

// What the step's adapters add to products that read x; see adapter::Args. Where none adds anything, it writes nothing,
// and the products take no delta.
struct AdapterDelta final : Instruction {
  std::shared_ptr<Adapters> adapters;
  bool plans = false;  // the first of those that share
  std::vector<adapter::Site> sites;
  std::size_t depth;
  Rows rows = Rows::kTokens;
  std::size_t x_at;
  std::size_t out_at;

  void prepare(const Step& step, int members) override;
  void run(const Frame& frame, Team& team) const override;
};

// A product and its epilogue; see linear::Product.
struct Project final : Instruction {
  std::vector<linear::Weight> parts;
  std::vector<std::size_t> sums;
  operand::Layout layout{};
  std::size_t operand_at;
  Rows rows = Rows::kTokens;
  // Up to so many rows, this tactic: in ascending order. More rows: `tactic`.
  std::vector<std::pair<std::size_t, linear::Tactic>> tactics;
  linear::Tactic tactic = linear::Tactic::kAuto;

  linear::EpilogueKind kind = linear::EpilogueKind::kStore;
  const float* bias = nullptr;
  std::size_t delta_at = kNowhere;
  std::size_t delta_stride = 0;
  std::shared_ptr<const Adapters> adapters;  // null: none, or a delta that is always there
  std::vector<adapter::Site> delta_sites;    // the delta counts only where one of these is touched
  float scale = 1.0F;
  float soft_cap = 0.0F;
  linear::Activation activation = linear::Activation::kSilu;
  std::size_t out_at = kNowhere;
  std::size_t out_stride = 0;
  operand::Layout out_layout{};
  std::size_t out_operand_at = kNowhere;

  // Throws std::invalid_argument where formats, sums or widths do not fit.
  void check() const;
  void run(const Frame& frame, Team& team) const override;
  std::size_t scratch_bytes() const override;

 private:
  linear::Product product(const Frame* frame) const;
  linear::Tactic tactic_for(std::size_t num_rows) const;
};

// The rotations of a step's tokens by rope `rope` of the step; see rope_kv::TableArgs.
struct RopeTable final : Instruction {
  std::size_t rope;
  std::size_t half;
  float factor;
  std::size_t out_at;

  void run(const Frame& frame, Team& team) const override;
};

// Norm, rotation and storing of a layer's queries, keys and values; see rope_kv::Args.
struct RopeKv final : Instruction {
  attention::Store store;
  std::size_t group;
  std::size_t layer;  // of the store
  std::size_t num_heads;
  rope_kv::NormKind norm = rope_kv::NormKind::kNone;
  const float* q_weight = nullptr;
  const float* k_weight = nullptr;
  float eps = 0.0F;
  std::size_t qkv_at;
  std::size_t qkv_stride;
  std::size_t table_at = kNowhere;
  std::size_t half = 0;
  float query_factor;
  std::size_t queries_at;

  void run(const Frame& frame, Team& team) const override;
};

// Who reads which pages together: planned once per step for all layers that share a page table and a window.
struct SharedWork {
  std::size_t group;
  attention::Geometry geometry;
  attention::Work work;
};

// Attention of a layer; see attention::Args.
struct Attend final : Instruction {
  std::shared_ptr<SharedWork> shared;
  bool plans = false;  // the first of those that share
  attention::Store store;
  std::size_t layer;  // of the store
  float soft_cap = 0.0F;
  std::size_t queries_at;
  std::size_t floats_at = kNowhere;
  operand::Layout layout{};
  std::size_t operand_at = kNowhere;

  void prepare(const Step& step, int members) override;
  void run(const Frame& frame, Team& team) const override;
  std::size_t scratch_bytes() const override { return attention::scratch_bytes(store.width); }
};

// Ops that no fusion took up, element by element on rows of floats; they keep any graph runnable.
enum class PlainOp : std::uint8_t { kAdd, kMul, kScale, kSoftCap, kSilu, kGeluTanh };

// out = a op b; of kSilu and kGeluTanh, activation(a) * b. All rows are `width` floats.
struct Plain final : Instruction {
  PlainOp op;
  Rows rows = Rows::kTokens;
  std::size_t width;
  std::size_t a_at;
  std::size_t b_at = kNowhere;
  float number = 1.0F;  // factor or cap
  std::size_t out_at;

  void run(const Frame& frame, Team& team) const override;
};

// RMS norm of each of the `count` runs of `width` floats that a row holds.
struct PlainNorm final : Instruction {
  Rows rows = Rows::kTokens;
  std::size_t count;
  std::size_t width;
  float eps;
  const float* weight;
  std::size_t x_at;
  std::size_t out_at;

  void run(const Frame& frame, Team& team) const override;
  std::size_t scratch_bytes() const override { return norm::scratch_bytes(width); }
};

// A row is `count` runs of the sum of `sizes`; piece i takes sizes[i] of each run.
struct Split final : Instruction {
  Rows rows = Rows::kTokens;
  std::size_t count;
  std::vector<std::size_t> sizes;
  std::size_t x_at;
  std::vector<std::size_t> outs_at;

  void run(const Frame& frame, Team& team) const override;
};

}  // namespace trivium::program
