#include "ops/attention/member.h"

#include <algorithm>
#include <limits>
#include <numbers>

namespace trivium::attention {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t query_bytes(KVType type) { return type == KVType::kF32 ? 4 : 2; }

}  // namespace

Scratch::Scratch(std::size_t width, std::byte* memory) {
  const auto take = [&](std::size_t bytes) {
    std::byte* const part = memory == nullptr ? nullptr : memory + num_bytes;
    num_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  };
  const std::size_t padded = (width + kLanes - 1) / kLanes * kLanes;
  const std::size_t state_bytes = sizeof(float) * Work::state_size(kBundleRows, padded);
  units = take(kMaxUnitBytes * width * kBundleRows);
  folded = reinterpret_cast<float*>(take(state_bytes));
  segment = reinterpret_cast<float*>(take(state_bytes));
  unpacked = reinterpret_cast<std::uint32_t*>(take(sizeof(std::uint32_t) * kTile / 2 * (width + padded)));
  first_seen = reinterpret_cast<std::int32_t*>(take(sizeof(std::int32_t) * kBundleRows));
  last_seen = reinterpret_cast<std::int32_t*>(take(sizeof(std::int32_t) * kBundleRows));
}

Member::Member(const Kernel& kernel, Work& work, const Args& args, bool is_alone, void* scratch)
    : run_(kernel.functions()),
      work_(work),
      args_(args),
      is_alone_(is_alone),
      layout_(head_layout(args.store->type, args.store->width)),
      scratch_(args.store->width, static_cast<std::byte*>(scratch)) {}

void Member::run(const Cut& from, const Cut& to) {
  Walk walk(work_, from, to);
  bool is_new_chain = true;
  bool is_new_segment = true;
  while (!walk.is_done()) {
    const Place here = walk.place();
    if (is_new_chain) open_chain(here);
    if (is_new_segment) open_segment(here);
    walk.advance();
    const Place* next = walk.is_done() ? nullptr : &walk.place();
    attend(here, next);
    is_new_chain = next == nullptr || next->chain != here.chain;
    is_new_segment = is_new_chain || next->segment != here.segment;
    if (is_new_segment) close_segment();
    if (is_new_chain) close_chain();
  }
}

void Member::merge(const Split& split, std::size_t begin, std::size_t end) {
  chain_ = chain_at(split.chain);
  const State merged = state_in(work_.record(split, 0)).at(begin, layout_.padded_width);
  for (std::size_t i = 1; i <= chain_.bundle->segment_end() - split.segment; ++i) {
    const State next = state_in(work_.record(split, i)).at(begin, layout_.padded_width);
    run_.fold(next, merged, end - begin, layout_.padded_width);
  }
  for (std::size_t r = begin; r < end; ++r) finish(r, merged.at(r - begin, layout_.padded_width));
}

std::size_t Member::num_rows(const Split& split) const { return chain_at(split.chain).num_rows; }

Member::Chain Member::chain_at(std::size_t index) const {
  const std::size_t slice = index % work_.num_slices();
  const std::size_t kv_head = slice / work_.num_parts();
  const std::size_t first = slice % work_.num_parts() * work_.heads_per_part();
  const std::size_t num_heads = std::min(work_.heads_per_part(), work_.shared_heads() - first);
  const Bundle* bundle = &work_.bundles()[index / work_.num_slices()];
  return {bundle, kv_head, kv_head * work_.shared_heads() + first, num_heads, bundle->num_tokens * num_heads};
}

std::size_t Member::token_of(const Chain& chain, std::size_t row) const {
  return static_cast<std::size_t>(work_.tokens()[chain.bundle->token_begin + row / chain.num_heads]);
}

const Split* Member::split_of(std::size_t chain) const {
  for (const Split& split : work_.splits()) {
    if (split.chain == chain && !is_alone_) return &split;
  }
  return nullptr;
}

State Member::state_in(float* memory) const {
  float* sum = memory + chain_.num_rows + kLanes;
  return {memory, sum, sum + chain_.num_rows * kLanes};
}

Pages Member::pages_of(const Run& run, std::size_t kv_head) const {
  const Rows& rows = work_.rows();
  return {head_at(*args_.store, args_.layer, 0, kv_head), args_.store->num_heads * layout_.num_bytes,
          rows.page_table + run.request * rows.pages_per_request, run.page_begin, run.page_end};
}

// Row r is query head r % num_heads of the chain's token r / num_heads.
void Member::load_rows() {
  const std::size_t bytes = layout_.width * query_bytes(layout_.type);
  const auto* queries = static_cast<const std::byte*>(args_.queries);
  for (std::size_t r = 0; r < chain_.num_rows; ++r) {
    const std::size_t token = token_of(chain_, r);
    const std::size_t head = chain_.first_head + r % chain_.num_heads;
    const auto position = static_cast<std::size_t>(work_.rows().positions[token]);
    run_.load_query(layout_, queries + (token * work_.geometry().num_heads + head) * bytes, scratch_.units, r);
    scratch_.first_seen[r] = static_cast<std::int32_t>(work_.first_seen(position));
    scratch_.last_seen[r] = static_cast<std::int32_t>(position);
  }
}

void Member::open_chain(const Place& place) {
  chain_ = chain_at(place.chain);
  split_ = split_of(place.chain);
  is_first_part_ = place.segment == chain_.bundle->segment_begin();
  folded_ = state_in(split_ == nullptr ? scratch_.folded : work_.record(*split_, 0));
  load_rows();
}

// The first segment is what later ones are merged into; segments of a later part are kept one by one.
void Member::open_segment(const Place& place) {
  const bool is_first = place.segment == chain_.bundle->segment_begin();
  is_to_fold_ = is_first_part_ && !is_first;
  state_ = is_first      ? folded_
           : is_to_fold_ ? state_in(scratch_.segment)
                         : state_in(work_.record(*split_, 1 + place.segment - split_->segment));
  std::fill_n(state_.max, chain_.num_rows + kLanes, std::numeric_limits<float>::lowest());
  std::fill_n(state_.sum, chain_.num_rows * (kLanes + layout_.padded_width), 0.0F);
}

void Member::attend(const Place& place, const Place* next) {
  const Run& run = work_.runs()[place.run];
  Call call{};
  call.layout = &layout_;
  call.soft_cap = args_.soft_cap * std::numbers::log2e_v<float>;
  call.pages = pages_of(run, chain_.kv_head);
  call.tile_begin = place.tile_begin;
  call.tile_end = place.tile_end;
  call.row_begin = run.token_begin * chain_.num_heads;
  call.row_end = run.token_end * chain_.num_heads;
  call.units = scratch_.units;
  call.state = state_;
  call.first_seen = scratch_.first_seen;
  call.last_seen = scratch_.last_seen;
  call.unpacked = scratch_.unpacked;
  if (next != nullptr) {
    call.next = pages_of(work_.runs()[next->run], next->chain % work_.num_slices() / work_.num_parts());
    call.next_tile = next->tile_begin;
  }
  run_.attend(call);
}

void Member::close_segment() {
  if (is_to_fold_) run_.fold(state_, folded_, chain_.num_rows, layout_.padded_width);
}

void Member::close_chain() {
  if (split_ != nullptr) return;
  for (std::size_t r = 0; r < chain_.num_rows; ++r) finish(r, folded_.at(r, layout_.padded_width));
}

void Member::finish(std::size_t row, const State& state) const {
  const Output& out = args_.out;
  const std::size_t token = token_of(chain_, row);
  Finish work{};
  work.state = state;
  work.width = layout_.width;
  work.first = (chain_.first_head + row % chain_.num_heads) * layout_.width;
  if (out.floats != nullptr) {
    work.floats = out.floats + token * out.stride + work.first;
  }
  if (out.operand != nullptr) {
    work.layout = out.layout;
    work.row = operand::row_at(*out.layout, out.operand, work_.num_tokens(), token);
  }
  run_.finish(work);
}

}  // namespace trivium::attention
