// AVX-512 and AMX, compiled with exactly those flags.
#include "ops/attention/lanes_avx512.h"
// Lanes first: what follows is written on them.
#include "ops/attention/amx_tiles_inl.h"
#include "ops/attention/attention_inl.h"

namespace trivium::attention {
namespace {

// Heads whose width the tiles hold; others, and float32, are computed as on the level below.
struct AmxLevel {
  using Below = Level<Bf16Dot, 12, 24>;

  static bool has_tiles(const HeadLayout& layout) { return layout.type != KVType::kF32 && layout.width % 16 == 0; }

  static void load_query(const HeadLayout& layout, const void* query, void* units, std::size_t row) {
    if (!has_tiles(layout)) return Below::load_query(layout, query, units, row);
    Bf16Rows::load_query(query, layout.width, static_cast<Bf16Rows::Unit*>(units) + row * (layout.width / 2));
  }

  static void attend(const Call& call) {
    if (!has_tiles(*call.layout)) return Below::attend(call);
    const TileRegisters registers(kAttentionTiles);
    Attend<AmxTiles>::run(call);
  }
};

}  // namespace

Functions attention_amx();
Functions attention_amx() { return {AmxLevel::load_query, AmxLevel::attend, fold, finish}; }

}  // namespace trivium::attention
