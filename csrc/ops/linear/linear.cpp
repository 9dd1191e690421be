// Selection, division of work, and the order in which a member goes through its panels. Compiled without ISA flags.
#include "ops/linear/linear.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/linear/blocks.h"
#include "ops/linear/kernels.h"

namespace trivium::linear {

#define TRIV_KERNEL(isa, function) Kernels function();
#include "ops/linear/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr std::size_t kMaxParts = 3;

// From so many rows of one panel on, unpacking it first is faster: reading it packed takes up to 3 % of a product's
// time, unpacking it as long as 2 to 3 rows.
constexpr std::size_t kUnpackRows = 128;

// A panel that is unpacked: codes, scales, minima.
constexpr std::size_t unpacked_bytes(std::size_t depth) {
  const std::size_t groups = depth / operand::kGroup;
  return groups * (group_bytes(8) + 2 * 2 * kPanel * sizeof(float));
}

constexpr std::size_t kResultBytes = operand::kTileRows * kPanel * sizeof(float);

// Panels that a member works on at the same time: gate and up, beside each other twice where the operand that is
// written has wide groups.
constexpr std::size_t kMaxPanels = 2 * operand::kWideGroup / kPanel;

// Units per sum that a product with this operand reads.
std::size_t sum_group(const Format& format, operand::Format left) {
  return left == operand::Format::kQ8Wide ? operand::kWideGroup : format.group;
}

struct Span {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

// One member's run through its share.
//
// Work items are (column, tile) pairs, column by column: a column is one panel, or the gate's panels that make a group
// of the operand to be written, one or two, and the up part's beside them. A share is a run of items, so that members
// differ by one tile at most, and a panel is read by two members only where a share ends inside it.
//
//   columns x tiles      c0t0 c0t1 c0t2 | c1t0 c1t1 c1t2 | c2t0 …
//   shares of three      `----- 0 -----------´ `----- 1 ---- …
class Member {
 public:
  Member(const Kernels& kernels, const Product& product, Tactic tactic, void* scratch)
      : kernels_(kernels),
        product_(product),
        tactic_(tactic),
        scratch_(static_cast<std::byte*>(scratch)),
        tiles_{product.num_rows},
        depth_(product.layout.depth),
        is_gated_(product.epilogue.kind == EpilogueKind::kGated) {
    const operand::Layout* written = product.epilogue.operand_layout;
    if (is_gated_ && written != nullptr) num_gates_ = written->group() / kPanel;
    for (std::size_t i = 0; i < product.parts.size(); ++i) {
      const Format& format = *product.parts[i].format;
      formats_[i] = kernels.format(format.id, product.layout.format);
      panel_bytes_[i] = panel_bytes(format, depth_);
    }
  }

  std::size_t num_columns() const {
    if (is_gated_) return (num_panels(product_.parts[0].num_cols) + num_gates_ - 1) / num_gates_;
    std::size_t columns = 0;
    for (const Weight& part : product_.parts) columns += num_panels(part.num_cols);
    return columns;
  }

  void run(Team::Share items) {
    const std::size_t num_tiles = tiles_.count();
    last_column_ = items.end == 0 ? 0 : (items.end - 1) / num_tiles;
    while (items.begin < items.end) {
      const std::size_t column = items.begin / num_tiles;
      const std::size_t first_tile = items.begin % num_tiles;
      const std::size_t count = std::min(num_tiles - first_tile, items.end - items.begin);
      if (is_gated_) {
        run_gated(column, first_tile, first_tile + count);
      } else {
        run_column(column, first_tile, first_tile + count);
      }
      items.begin += count;
    }
  }

 private:
  // A panel of a part, ready for tiles.
  struct Source {
    std::size_t part;
    const TileFn* tiles;
    std::size_t max_rows;
    TileArgs args;  // without the operand's side
    Span ahead;     // what comes after this panel
  };

  struct Place {
    std::size_t part;
    std::size_t panel;
    std::size_t first_col;  // over all parts
  };

  Place place_of(std::size_t column) const {
    Place place{0, column, 0};
    while (place.panel >= num_panels(product_.parts[place.part].num_cols)) {
      place.panel -= num_panels(product_.parts[place.part].num_cols);
      place.first_col += product_.parts[place.part].num_cols;
      ++place.part;
    }
    place.first_col += place.panel * kPanel;
    return place;
  }

  Span bytes_of(std::size_t part, std::size_t panel) const {
    const std::byte* begin = product_.parts[part].panels + panel * panel_bytes_[part];
    return {begin, begin + panel_bytes_[part]};
  }

  void run_column(std::size_t column, std::size_t first_tile, std::size_t end_tile) {
    const Place place = place_of(column);
    const std::size_t num_rows = tiles_.begin(end_tile) - tiles_.begin(first_tile);
    Source source = prepare(place.part, place.panel, num_rows, 0);
    if (column < last_column_) {
      const Place next = place_of(column + 1);
      source.ahead = bytes_of(next.part, next.panel);
    }
    FinishArgs args{};
    args.y = results(0);
    args.first_col = place.first_col;
    args.num_cols = std::min(kPanel, product_.parts[place.part].num_cols - place.panel * kPanel);
    for (std::size_t tile = first_tile; tile < end_tile; ++tile) {
      multiply(source, tile, tile - first_tile, end_tile - first_tile, results(0));
      finish(args, tile);
    }
  }

  void run_gated(std::size_t column, std::size_t first_tile, std::size_t end_tile) {
    const std::size_t num_cols = product_.parts[0].num_cols;
    const std::size_t end_panel = num_panels(num_cols);
    const std::size_t first_panel = column * num_gates_;
    const std::size_t count = std::min(num_gates_, end_panel - first_panel);
    const std::size_t num_rows = tiles_.begin(end_tile) - tiles_.begin(first_tile);
    Source sources[kMaxPanels];  // gate, up, gate, up
    for (std::size_t i = 0; i < 2 * count; ++i) {
      sources[i] = prepare(i % 2, first_panel + i / 2, num_rows, i);
      const std::size_t next = first_panel + num_gates_ + i / 2;
      if (column < last_column_ && next < end_panel) sources[i].ahead = bytes_of(i % 2, next);
    }
    const operand::Layout* written = product_.epilogue.operand_layout;
    for (std::size_t tile = first_tile; tile < end_tile; ++tile) {
      for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t part = 2 * i; part < 2 * i + 2; ++part) {
          multiply(sources[part], tile, tile - first_tile, end_tile - first_tile, results(part));
        }
        const std::size_t panel = first_panel + i;
        const bool is_last = panel + 1 == end_panel;
        FinishArgs args{};
        args.first_col = panel * kPanel;
        args.num_cols = std::min(kPanel, num_cols - args.first_col);
        args.up_col = num_cols + args.first_col;
        args.y = results(2 * i);
        args.up = results(2 * i + 1);
        args.before = i > 0 ? results(2 * i - 2) : nullptr;
        args.is_half = i + 1 < count;
        args.num_pad = is_last && written != nullptr ? written->depth - (panel + 1) * kPanel : 0;
        finish(args, tile);
      }
    }
  }

  // A format that needs no sum may name any.
  std::size_t sum_of(std::size_t part) const { return std::min(product_.sums[part], product_.layout.num_sums - 1); }

  float* results(std::size_t which) const { return reinterpret_cast<float*>(scratch_ + which * kResultBytes); }

  // Chooses how a panel is read, and unpacks it where that is the choice; `room` counts the panels alive at once.
  Source prepare(std::size_t part, std::size_t panel, std::size_t num_rows, std::size_t room) const {
    const Format& format = *product_.parts[part].format;
    const FormatKernels& kernels = formats_[part];
    const std::byte* begin = bytes_of(part, panel).begin;
    const std::size_t least = tactic_ == Tactic::kUnpacked ? kUnpackable : kUnpackRows;
    const bool is_unpacked = kernels.unpack != nullptr && tactic_ != Tactic::kDirect && num_rows >= least;
    Source source{};
    source.part = part;
    TileArgs& args = source.args;
    args.blocks = begin + format.header_bytes;
    args.num_blocks = depth_ / format.block;
    args.block_bytes = format.block_bytes;
    args.block_groups = format.block / operand::kGroup;
    args.scales = reinterpret_cast<const float*>(begin);  // of i8_c, the only one that looks here
    source.tiles = is_unpacked ? kernels.unpacked : kernels.direct;
    source.max_rows = kernels.max_rows;
    if (is_unpacked) unpack(kernels.unpack, args, scratch_ + kMaxPanels * kResultBytes + room * unpacked_bytes(depth_));
    return source;
  }

  void unpack(UnpackFn fn, TileArgs& args, std::byte* codes) const {
    const std::size_t groups = depth_ / operand::kGroup;
    auto* scales = reinterpret_cast<float*>(codes + groups * group_bytes(8));
    float* mins = scales + groups * 2 * kPanel;
    fn({args.blocks, args.num_blocks, args.block_bytes, args.block_groups, codes, scales, mins});
    args.blocks = codes;
    args.num_blocks = 1;
    args.block_bytes = groups * group_bytes(8);
    args.block_groups = groups;
    args.scales = scales;
    args.mins = mins;
  }

  // The tile times the panel, into y [R][kPanel]; call `index` of `count` of this panel.
  void multiply(const Source& source, std::size_t tile, std::size_t index, std::size_t count, float* y) const {
    const operand::Layout& layout = product_.layout;
    const std::size_t height = tiles_.height(tile);
    const std::uint32_t* words =
        static_cast<const std::uint32_t*>(product_.operand) + tiles_.begin(tile) * layout.row_words();
    const std::size_t lines = static_cast<std::size_t>(source.ahead.end - source.ahead.begin) / kLine;
    const std::size_t pieces = (height + source.max_rows - 1) / source.max_rows;
    TileArgs args = source.args;
    args.stride = height;
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t row = height * i / pieces;
      const std::size_t rows = height * (i + 1) / pieces - row;
      const std::size_t call = index * pieces + i;
      args.units = words + row;
      if (operand::is_quantised(layout.format)) {
        args.unit_scales = reinterpret_cast<const float*>(words + layout.scales_at() * height + row);
        if (layout.num_sums > 0) args.sums = words + layout.sums_at(sum_of(source.part)) * height + row;
      }
      args.ahead = source.ahead.begin + lines * call / (count * pieces) * kLine;
      args.ahead_end = source.ahead.begin + lines * (call + 1) / (count * pieces) * kLine;
      args.out = y + row * kPanel;
      source.tiles[rows - 1](args);
    }
  }

  void finish(FinishArgs& args, std::size_t tile) const {
    args.epilogue = &product_.epilogue;
    args.total_rows = product_.num_rows;
    args.first_row = tiles_.begin(tile);
    args.num_rows = tiles_.height(tile);
    kernels_.finish(args);
  }

  const Kernels& kernels_;
  const Product& product_;
  Tactic tactic_;
  std::byte* scratch_;
  operand::Tiles tiles_;
  std::size_t depth_;
  bool is_gated_;
  std::size_t num_gates_ = 1;  // panels of the gate in a column
  std::size_t last_column_ = 0;
  FormatKernels formats_[kMaxParts];
  std::size_t panel_bytes_[kMaxParts];
};

struct List {
  std::array<Kernels, 5> kernels{};
  std::array<const Kernels*, 5> pointers{};
  std::size_t size = 0;

  List() {
#define TRIV_KERNEL(isa, function) add(function());
#include "ops/linear/kernels.inc"
#undef TRIV_KERNEL
  }
  void add(const Kernels& entry) {
    kernels[size] = entry;
    pointers[size] = &kernels[size];
    ++size;
  }
};

const List& list() {
  static const List made;
  return made;
}

}  // namespace

std::span<const Kernels* const> all() { return {list().pointers.data(), list().size}; }

const Kernels& best(Isa isa) {
  for (const Kernels* kernels : all()) {
    if (includes(isa, kernels->isa)) return *kernels;
  }
  return *all().back();
}

Isa isa_of(const Kernels& kernels) { return kernels.isa; }

std::size_t scratch_bytes(std::size_t depth) {
  return kMaxPanels *
         (kResultBytes + unpacked_bytes((depth + operand::kGroup - 1) / operand::kGroup * operand::kGroup));
}

void check(const Product& product) {
  const std::size_t count = product.parts.size();
  const operand::Layout& layout = product.layout;
  TRIV_CHECK(count >= 1 && count <= kMaxParts, "linear: %zu parts; a product has 1 to %zu", count, kMaxParts);
  TRIV_CHECK(product.sums.size() == count, "linear: %zu sums for %zu parts", product.sums.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    const Format& format = *product.parts[i].format;
    TRIV_CHECK(fits(format, layout.format), "linear: part %zu (%s) needs another operand format", i, format.name);
    TRIV_CHECK(layout.depth % format.block == 0, "linear: depth %zu is not whole blocks of %zu of part %zu (%s)",
               layout.depth, format.block, i, format.name);
    TRIV_CHECK(product.parts[i].num_cols > 0, "linear: part %zu has no columns", i);
    if (format.zero == 0 && !format.has_min) continue;
    const std::size_t sum = product.sums[i];
    const std::size_t group = sum_group(format, layout.format);
    TRIV_CHECK(sum < layout.num_sums, "linear: part %zu reads sum %zu of %zu", i, sum, layout.num_sums);
    TRIV_CHECK(layout.sums[sum].group == group && layout.sums[sum].zero == format.zero,
               "linear: part %zu (%s) needs the sum of %zu units with zero %d, not of %d with %d", i, format.name,
               group, format.zero, layout.sums[sum].group, layout.sums[sum].zero);
  }
  if (product.epilogue.kind != EpilogueKind::kGated) return;
  TRIV_CHECK(count == 2 && product.parts[0].num_cols == product.parts[1].num_cols,
             "linear: a gated product has two parts with as many columns");
  const operand::Layout* written = product.epilogue.operand_layout;
  TRIV_CHECK(written == nullptr || (written->depth >= num_panels(product.parts[0].num_cols) * kPanel &&
                                    written->depth % written->group() == 0),
             "linear: the gated operand has depth %zu for %zu columns", written == nullptr ? 0 : written->depth,
             product.parts[0].num_cols);
}

void run(const Kernels& kernels, const Product& product, Tactic tactic, Team& team, void* scratch) {
  if (product.num_rows == 0) return;
  Member member(kernels, product, tactic, scratch);
  member.run(team.share(member.num_columns() * operand::Tiles{product.num_rows}.count()));
}

operand::Layout layout_for(const Format& format, std::size_t depth) {
  return layout_for(format, depth, format.operand);
}

operand::Layout layout_for(const Format& format, std::size_t depth, operand::Format left) {
  operand::Layout layout{};
  layout.format = left;
  layout.depth = padded_depth(format, depth);
  if (format.zero != 0 || format.has_min) {
    layout.sums[0] = {static_cast<std::uint8_t>(sum_group(format, left)), format.zero};
    layout.num_sums = 1;
  }
  return layout;
}

void multiply(const Kernels& kernels, const Weight& weight, std::size_t depth, const float* x, std::size_t num_rows,
              float* out) {
  if (num_rows == 0) return;
  const operand::Layout layout = layout_for(*weight.format, depth);
  std::vector<std::uint32_t> operand(num_rows * layout.row_words());
  operand::write_rows(x, num_rows, depth, layout, operand.data());
  const std::size_t sum = 0;
  Product product{};
  product.parts = {&weight, 1};
  product.sums = {&sum, 1};
  product.layout = layout;
  product.operand = operand.data();
  product.num_rows = num_rows;
  product.epilogue.scale = 1.0F;
  product.epilogue.out = out;
  product.epilogue.out_stride = weight.num_cols;
  check(product);
  const std::size_t room = (scratch_bytes(layout.depth) + kLine - 1) / kLine * kLine + kLine;
  const auto members = static_cast<std::size_t>(num_threads());
  const std::unique_ptr<std::byte[]> scratch(new std::byte[room * members + kLine]);
  std::byte* first = scratch.get() + (kLine - reinterpret_cast<std::uintptr_t>(scratch.get()) % kLine) % kLine;
  run_team([&](Team& team) {
    run(kernels, product, Tactic::kAuto, team, first + room * static_cast<std::size_t>(team.index()));
  });
}

}  // namespace trivium::linear
