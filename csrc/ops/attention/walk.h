// The calls of a member, one after the other: chains, their segments, and in each the runs that reach into it.
//
//   chain 4          segment 0                    segment 1              a bundle of two requests that agree up to tile
//   5 run 0 (a, b)     [ tiles 0 1 2 3 ]  call 0    [ 4 ]        call 1 run 1 (a)                                     [
//   5 6 ]      call 2 run 2 (b)                                     [ 5 6 7 ]    call 3
//
// One call ahead is known, so that its first tile can be fetched while the call before it computes.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/attention/plan.h"

namespace trivium::attention {

struct Place {
  std::size_t chain;
  std::size_t segment;
  std::size_t run;  // of Work::runs
  std::size_t tile_begin;
  std::size_t tile_end;
};

class Walk {
 public:
  Walk(const Work& work, const Cut& from, const Cut& to)
      : work_(work), end_(to), place_{from.chain, from.segment, 0, 0, 0} {
    if (is_done()) return;
    place_.run = bundle().run_begin;
    settle();
  }

  bool is_done() const { return place_.chain == work_.num_chains() || Cut{place_.chain, place_.segment} == end_; }
  const Place& place() const { return place_; }

  void advance() {
    ++place_.run;
    settle();
  }

 private:
  const Bundle& bundle() const { return work_.bundles()[place_.chain / work_.num_slices()]; }

  // From the run at hand on, the first that reaches into its segment.
  void settle() {
    while (!is_done()) {
      for (; place_.run < bundle().run_end; ++place_.run) {
        const Run& run = work_.runs()[place_.run];
        place_.tile_begin = std::max(run.tile_begin, place_.segment * kSegmentTiles);
        place_.tile_end = std::min(run.tile_end, (place_.segment + 1) * kSegmentTiles);
        if (place_.tile_begin < place_.tile_end) return;
      }
      if (++place_.segment == bundle().segment_end()) {
        ++place_.chain;
        if (place_.chain == work_.num_chains()) return;
        place_.segment = bundle().segment_begin();
      }
      place_.run = bundle().run_begin;
    }
  }

  const Work& work_;
  const Cut end_;
  Place place_;
};

}  // namespace trivium::attention
