// Who reads which pages together, and where a step's attention is cut among the members of a team. Made once per step
// for all layers that share a page table and a window.
//
// A run is some requests whose tables name the same pages over some tiles: their rows pass under each tile together. A
// bundle is up to kBundleRows rows per KV head, made of runs; requests are sorted by their tables, so that those which
// share most are neighbours. Three requests of one token each, a and b agreeing up to tile 5, c with both up to tile 3:
//
//   tile      0     1     2     3     4     5     6
//   a         [---- run 0 ----][-- run 1 --][ run 2 ]
//   b         [               ][           ][ run 3 …
//   c         [               ][ run 4 …
//
// A chain is one bundle of one KV head, segment after segment. All chains in a row, each as long as its cost, are cut
// into one piece per member:
//
//   chain       | 0          | 1          | 2          |
//   segment     | 0  | 1  |2 | 0  | 1  |2 | 0  | 1  |2 |        a cut falls between segments;
//   member      |  0               |  1                |        one that is near a chain's end moves there
//
// A chain that is cut is a split: its first part is merged as usual into record 0, later parts leave one record per
// segment, and after a barrier the records are merged from left to right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/kernel.h"

namespace trivium::attention {

inline constexpr std::size_t kSegmentTiles = kSegment / kTile;

struct Geometry {
  std::size_t num_heads;     // H
  std::size_t num_kv_heads;  // G
  std::size_t width;         // D
  std::size_t window;        // positions that a row sees, itself included; 0: all before it
};

struct Run {
  std::size_t token_begin;  // of the bundle
  std::size_t token_end;
  std::size_t tile_begin;
  std::size_t tile_end;
  std::size_t page_begin;  // pages that some token sees
  std::size_t page_end;
  std::size_t request;  // whose table names the pages
};

struct Bundle {
  std::size_t token_begin;  // of Work::tokens
  std::size_t num_tokens;
  std::size_t run_begin;  // of Work::runs; a token's runs ascend
  std::size_t run_end;
  std::size_t tile_begin;
  std::size_t tile_end;
  std::size_t cost;         // of one chain
  std::size_t cost_before;  // of all chains of earlier bundles

  std::size_t segment_begin() const { return tile_begin / kSegmentTiles; }
  std::size_t segment_end() const { return (tile_end - 1) / kSegmentTiles + 1; }
};

// A point between two segments of all chains.
struct Cut {
  std::size_t chain;
  std::size_t segment;

  bool operator==(const Cut&) const = default;
};

struct Split {
  std::size_t chain;
  std::size_t segment;  // the first of the second part: record 1
  std::size_t at;       // where its records begin, in floats
};

class Work {
 public:
  // Plans a step. The arrays of `rows` must outlive the work, and every page that a token sees must be one of the
  // store's (program/check.h). Allocates only while it meets its largest step so far.
  void build(const Rows& rows, const Geometry& geometry, int members);

  const Rows& rows() const { return rows_; }
  const Geometry& geometry() const { return geometry_; }
  int members() const { return members_; }
  std::size_t num_tokens() const { return tokens_.size(); }

  // Query heads of a KV head that one chain takes: all of them, or equal parts of at most kBundleRows.
  std::size_t shared_heads() const { return geometry_.num_heads / geometry_.num_kv_heads; }
  std::size_t num_parts() const { return (shared_heads() + kBundleRows - 1) / kBundleRows; }
  std::size_t heads_per_part() const { return (shared_heads() + num_parts() - 1) / num_parts(); }
  std::size_t num_slices() const { return geometry_.num_kv_heads * num_parts(); }
  std::size_t num_chains() const { return bundles_.size() * num_slices(); }

  const std::vector<Bundle>& bundles() const { return bundles_; }
  const std::vector<Run>& runs() const { return runs_; }
  // Tokens of the step in the order of bundles.
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  const std::vector<Split>& splits() const { return splits_; }
  // Member m runs from cut m to cut m + 1.
  const std::vector<Cut>& cuts() const { return cuts_; }

  std::size_t padded_width() const { return (geometry_.width + kLanes - 1) / kLanes * kLanes; }
  // Floats of the state of some rows, with the room that State asks for.
  static std::size_t state_size(std::size_t num_rows, std::size_t padded_width) {
    return num_rows * (1 + kLanes + padded_width) + kLanes;
  }
  // Record `index` of a split, a state of all rows of its chain.
  float* record(const Split& split, std::size_t index);

  // The first position that a row at `position` sees.
  std::size_t first_seen(std::size_t position) const {
    return geometry_.window == 0 || position < geometry_.window ? 0 : position + 1 - geometry_.window;
  }
  // What a bundle's segment costs one chain.
  std::size_t segment_cost(const Bundle& bundle, std::size_t segment) const;

 private:
  struct Entry {
    std::uint64_t key;  // first tile and its first page
    std::size_t request;
    std::size_t first_tile;
    std::size_t end_tile;
    std::size_t whole_tiles;   // tiles all of whose pages hold keys
    std::size_t shared_until;  // tiles shared with the entry before
  };

  const std::int32_t* pages_of(std::size_t request) const {
    return rows_.page_table + request * rows_.pages_per_request;
  }
  std::size_t count_of(std::size_t request) const {
    return static_cast<std::size_t>(rows_.starts[request + 1] - rows_.starts[request]);
  }
  std::size_t chain_cost(const Bundle& bundle) const;
  std::size_t shared_tiles(const Entry& a, const Entry& b) const;
  bool is_before(const Entry& a, const Entry& b) const;
  void sort_requests();
  void bundle_requests();
  void add_alone(const Entry& entry, std::size_t tokens_at_once);
  void add_together(std::size_t begin, std::size_t end);
  void add_runs(std::size_t begin, std::size_t end, std::size_t tile, std::size_t token);
  void close_bundle(Bundle bundle);
  Cut cut_at(std::size_t cost, std::size_t slack) const;
  void cut_chains();

  Rows rows_{};
  Geometry geometry_{};
  int members_ = 1;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> tokens_;
  std::vector<Run> runs_;
  std::vector<Bundle> bundles_;
  std::vector<Cut> cuts_;
  std::vector<Split> splits_;
  std::vector<float> records_;
};

}  // namespace trivium::attention
