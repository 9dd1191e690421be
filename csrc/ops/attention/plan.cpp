#include "ops/attention/plan.h"

#include <algorithm>
#include <cstring>

namespace trivium::attention {
namespace {

// A tile costs its rows, or what it takes to fetch it where rows are few; and something for the walk.
constexpr std::size_t kFetchCost = 6;
constexpr std::size_t kTileCost = 1;
// Per chain: queries are loaded, outputs divided and written.
constexpr std::size_t kChainCost = 4;
// A cut may move to the end of its chain when that shifts less than this part of a member's work.
constexpr std::size_t kSlackPart = 32;

std::size_t common(std::size_t begin_a, std::size_t end_a, std::size_t begin_b, std::size_t end_b) {
  const std::size_t begin = std::max(begin_a, begin_b);
  const std::size_t end = std::min(end_a, end_b);
  return begin < end ? end - begin : 0;
}

}  // namespace

void Work::build(const Rows& rows, const Geometry& geometry, int members) {
  rows_ = rows;
  geometry_ = geometry;
  members_ = members;
  tokens_.clear();
  runs_.clear();
  bundles_.clear();
  sort_requests();
  bundle_requests();
  cut_chains();
}

void Work::sort_requests() {
  entries_.clear();
  for (std::size_t b = 0; b < rows_.num_requests; ++b) {
    if (count_of(b) == 0) continue;
    const auto kv_len = static_cast<std::size_t>(rows_.kv_lens[b]);
    const std::size_t first_tile = first_seen(kv_len - count_of(b)) / kTile;
    const auto first_page = static_cast<std::uint32_t>(pages_of(b)[first_tile * kTilePages]);
    const std::size_t num_pages = (kv_len + kPageLen - 1) / kPageLen;
    entries_.push_back({std::uint64_t{first_tile} << 32 | first_page, b, first_tile, (kv_len - 1) / kTile + 1,
                        num_pages / kTilePages, 0});
  }
  std::sort(entries_.begin(), entries_.end(), [this](const Entry& a, const Entry& b) { return is_before(a, b); });
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    entries_[i].shared_until = shared_tiles(entries_[i - 1], entries_[i]);
  }
}

// The tile up to which two requests read the same pages; their first tile, or 0, where they share nothing.
std::size_t Work::shared_tiles(const Entry& a, const Entry& b) const {
  if (a.key != b.key) return 0;
  const std::int32_t* pages_a = pages_of(a.request);
  const std::int32_t* pages_b = pages_of(b.request);
  const std::size_t end = std::min(a.whole_tiles, b.whole_tiles);
  std::size_t tile = a.first_tile;
  while (tile < end &&
         std::memcmp(pages_a + tile * kTilePages, pages_b + tile * kTilePages, kTilePages * sizeof *pages_a) == 0) {
    ++tile;
  }
  return tile;
}

// By first tile and page; then by the first page that differs, a shorter request before one that goes on.
bool Work::is_before(const Entry& a, const Entry& b) const {
  if (a.key != b.key) return a.key < b.key;
  const std::int32_t* pages_a = pages_of(a.request);
  const std::int32_t* pages_b = pages_of(b.request);
  const std::size_t begin = a.first_tile * kTilePages;
  const std::size_t end = std::min(a.whole_tiles, b.whole_tiles) * kTilePages;
  if (begin < end) {
    const auto [at_a, at_b] = std::mismatch(pages_a + begin, pages_a + end, pages_b + begin);
    if (at_a != pages_a + end) return *at_a < *at_b;
  }
  return a.whole_tiles != b.whole_tiles ? a.whole_tiles < b.whole_tiles : a.request < b.request;
}

void Work::bundle_requests() {
  const std::size_t most = std::max<std::size_t>(1, kBundleRows / heads_per_part());  // tokens of a bundle
  for (std::size_t i = 0; i < entries_.size();) {
    std::size_t tokens = count_of(entries_[i].request);
    std::size_t end = i + 1;
    for (; end < entries_.size() && entries_[end].shared_until > entries_[end].first_tile; ++end) {
      const std::size_t more = count_of(entries_[end].request);
      if (tokens + more > most) break;
      tokens += more;
    }
    if (end == i + 1) {
      add_alone(entries_[i], most);
    } else {
      add_together(i, end);
    }
    i = end;
  }
}

// One request, its tokens in bundles of nearly equal size.
void Work::add_alone(const Entry& entry, std::size_t tokens_at_once) {
  const std::size_t count = count_of(entry.request);
  const auto first_token = static_cast<std::size_t>(rows_.starts[entry.request]);
  const auto first_position = static_cast<std::size_t>(rows_.positions[first_token]);
  const std::size_t pieces = (count + tokens_at_once - 1) / tokens_at_once;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t begin = count * piece / pieces;
    const std::size_t end = count * (piece + 1) / pieces;
    const std::size_t seen = first_seen(first_position + begin);
    const std::size_t last = first_position + end - 1;
    Bundle bundle{tokens_.size(), end - begin, runs_.size(), 0, seen / kTile, last / kTile + 1, 0, 0};
    for (std::size_t i = begin; i < end; ++i) tokens_.push_back(static_cast<std::int32_t>(first_token + i));
    runs_.push_back(
        {0, end - begin, bundle.tile_begin, bundle.tile_end, seen / kPageLen, last / kPageLen + 1, entry.request});
    close_bundle(bundle);
  }
}

// Entries [begin, end), which share their first tile at least.
void Work::add_together(std::size_t begin, std::size_t end) {
  Bundle bundle{tokens_.size(), 0, runs_.size(), 0, entries_[begin].first_tile, 0, 0, 0};
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t request = entries_[i].request;
    for (std::int32_t t = rows_.starts[request]; t < rows_.starts[request + 1]; ++t) tokens_.push_back(t);
    bundle.tile_end = std::max(bundle.tile_end, entries_[i].end_tile);
  }
  bundle.num_tokens = tokens_.size() - bundle.token_begin;
  add_runs(begin, end, bundle.tile_begin, 0);
  close_bundle(bundle);
}

// Entries [begin, end), which agree up to `tile`; their tokens begin at `token` of the bundle.
void Work::add_runs(std::size_t begin, std::size_t end, std::size_t tile, std::size_t token) {
  std::size_t until = entries_[begin].end_tile;
  for (std::size_t i = begin + 1; i < end; ++i) until = std::min(until, entries_[i].shared_until);
  std::size_t num_tokens = 0;
  std::size_t page_begin = SIZE_MAX;
  std::size_t page_end = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const auto kv_len = static_cast<std::size_t>(rows_.kv_lens[entries_[i].request]);
    const std::size_t count = count_of(entries_[i].request);
    num_tokens += count;
    page_begin = std::min(page_begin, first_seen(kv_len - count) / kPageLen);
    page_end = std::max(page_end, (kv_len - 1) / kPageLen + 1);
  }
  if (tile < until) {
    runs_.push_back({token, token + num_tokens, tile, until, page_begin, std::min(page_end, until * kTilePages),
                     entries_[begin].request});
  }
  if (end == begin + 1) return;
  // Cut where neighbours agree no further; what is between goes on together.
  for (std::size_t i = begin; i < end;) {
    std::size_t next = i + 1;
    std::size_t count = count_of(entries_[i].request);
    for (; next < end && entries_[next].shared_until > until; ++next) count += count_of(entries_[next].request);
    add_runs(i, next, until, token);
    token += count;
    i = next;
  }
}

void Work::close_bundle(Bundle bundle) {
  bundle.run_end = runs_.size();
  bundle.cost = chain_cost(bundle);
  const Bundle* before = bundles_.empty() ? nullptr : &bundles_.back();
  bundle.cost_before = before == nullptr ? 0 : before->cost_before + before->cost * num_slices();
  bundles_.push_back(bundle);
}

std::size_t Work::segment_cost(const Bundle& bundle, std::size_t segment) const {
  std::size_t cost = segment == bundle.segment_begin() ? kChainCost + bundle.num_tokens * heads_per_part() / 2 : 0;
  for (std::size_t i = bundle.run_begin; i < bundle.run_end; ++i) {
    const Run& run = runs_[i];
    const std::size_t tiles =
        common(run.tile_begin, run.tile_end, segment * kSegmentTiles, (segment + 1) * kSegmentTiles);
    const std::size_t rows = (run.token_end - run.token_begin) * heads_per_part();
    cost += tiles * (std::max(rows, kFetchCost) + kTileCost);
  }
  return cost;
}

std::size_t Work::chain_cost(const Bundle& bundle) const {
  std::size_t cost = 0;
  for (std::size_t s = bundle.segment_begin(); s < bundle.segment_end(); ++s) cost += segment_cost(bundle, s);
  return cost;
}

// The point nearest to `cost` from the left end of all chains.
Cut Work::cut_at(std::size_t cost, std::size_t slack) const {
  const auto after =
      std::upper_bound(bundles_.begin(), bundles_.end(), cost,
                       [](std::size_t value, const Bundle& bundle) { return value < bundle.cost_before; });
  const auto index = static_cast<std::size_t>(after - bundles_.begin()) - 1;
  const Bundle& bundle = bundles_[index];
  const std::size_t chain = index * num_slices() + (cost - bundle.cost_before) / bundle.cost;
  const std::size_t inside = (cost - bundle.cost_before) % bundle.cost;
  const auto chain_start = [this](std::size_t which) {
    const std::size_t of = which / num_slices();
    return Cut{which, of < bundles_.size() ? bundles_[of].segment_begin() : 0};
  };
  if (inside <= slack) return chain_start(chain);
  if (bundle.cost - inside <= slack) return chain_start(chain + 1);
  std::size_t segment = bundle.segment_begin();
  std::size_t left = 0;  // cost up to this segment
  for (; segment + 1 < bundle.segment_end(); ++segment) {
    const std::size_t length = segment_cost(bundle, segment);
    if (inside < left + length / 2) break;
    left += length;
  }
  if (segment + 1 == bundle.segment_end() && inside >= left + (bundle.cost - left) / 2) return chain_start(chain + 1);
  return {chain, segment};
}

void Work::cut_chains() {
  cuts_.clear();
  splits_.clear();
  cuts_.push_back({0, bundles_.empty() ? 0 : bundles_[0].segment_begin()});
  const std::size_t total = bundles_.empty() ? 0 : bundles_.back().cost_before + bundles_.back().cost * num_slices();
  const auto members = static_cast<std::size_t>(members_);
  const std::size_t slack = total / members / kSlackPart;
  std::size_t size = 0;
  for (std::size_t m = 1; m < members; ++m) {
    cuts_.push_back(total == 0 ? cuts_[0] : cut_at(total * m / members, slack));
    const Cut& cut = cuts_.back();
    if (cut.chain == num_chains()) continue;
    const Bundle& bundle = bundles_[cut.chain / num_slices()];
    const bool is_known = !splits_.empty() && splits_.back().chain == cut.chain;
    if (cut.segment == bundle.segment_begin() || is_known) continue;
    splits_.push_back({cut.chain, cut.segment, size});
    size += (1 + bundle.segment_end() - cut.segment) * state_size(bundle.num_tokens * heads_per_part(), padded_width());
  }
  cuts_.push_back({num_chains(), 0});
  if (records_.size() < size) records_.resize(size);
}

float* Work::record(const Split& split, std::size_t index) {
  const Bundle& bundle = bundles_[split.chain / num_slices()];
  return records_.data() + split.at + index * state_size(bundle.num_tokens * heads_per_part(), padded_width());
}

}  // namespace trivium::attention
