// Plans re-derived: every row meets each of its tiles once, from left to right, in its own pages; sharing is found;
// members get equal work.
#include <set>

#include "ops/attention/plan.h"
#include "ops/attention/walk.h"
#include "tests/check.h"
#include "tests/test_attention_support.h"

namespace trivium::attention {
namespace {

using namespace tests;

// Some requests that decode, verify or prefill; some continue another's whole pages.
std::vector<Request> random_requests(std::mt19937& engine, std::size_t window) {
  const auto draw = [&](std::size_t below) { return static_cast<std::size_t>(engine() % below); };
  std::vector<Request> requests;
  std::int32_t next_page = 0;
  const std::size_t count = 1 + draw(12);
  while (requests.size() < count) {
    const std::size_t tokens = draw(3) == 0 ? 1 + draw(90) : 1 + draw(4);
    Request request{draw(700), tokens, {}};
    if (!requests.empty() && draw(2) == 0) {
      const Request& parent = requests[draw(requests.size())];
      const std::size_t shared = draw(parent.first / kPageLen + 1);
      request.pages.assign(parent.pages.begin(), parent.pages.begin() + static_cast<std::ptrdiff_t>(shared));
      request.first = std::max(request.first, shared * kPageLen);
    }
    while (request.pages.size() < pages_for(request.first + tokens)) request.pages.push_back(next_page++);
    requests.push_back(request);
  }
  // Some pages before the window are no longer held.
  for (Request& request : requests) {
    const std::size_t seen = window == 0 || request.first < window ? 0 : request.first + 1 - window;
    for (std::size_t page = 0; page < seen / kPageLen && draw(8) != 0; ++page) request.pages[page] = -1;
  }
  return requests;
}

struct Token {
  std::size_t request;
  std::size_t first_seen;
  std::size_t position;
};

Token token_at(const Step& step, const Work& work, std::size_t token) {
  std::size_t request = 0;
  while (static_cast<std::size_t>(step.starts[request + 1]) <= token) ++request;
  const auto position = static_cast<std::size_t>(step.positions[token]);
  return {request, work.first_seen(position), position};
}

// Faults of one run for one of its tokens: pages that are not the token's own.
std::size_t wrong_pages(const Step& step, const Token& token, const Run& run) {
  std::size_t wrong = 0;
  const std::int32_t* own = step.table.data() + token.request * step.pages_per_request;
  const std::int32_t* named = step.table.data() + run.request * step.pages_per_request;
  const std::size_t begin = std::max(run.tile_begin * kTilePages, token.first_seen / kPageLen);
  const std::size_t end = std::min(run.tile_end * kTilePages, token.position / kPageLen + 1);
  for (std::size_t page = begin; page < end; ++page) {
    wrong += own[page] == named[page] && page >= run.page_begin && page < run.page_end ? 0 : 1;
  }
  for (std::size_t page = std::max(run.page_begin, run.tile_begin * kTilePages);
       page < std::min(run.page_end, run.tile_end * kTilePages); ++page) {
    wrong += named[page] >= 0 ? 0 : 1;
  }
  return wrong;
}

// Tiles that a token does not meet in order, and those it lacks.
std::size_t wrong_runs(const Step& step, const Work& work, const Bundle& bundle, std::size_t index) {
  const Token token = token_at(step, work, static_cast<std::size_t>(work.tokens()[bundle.token_begin + index]));
  std::size_t wrong = 0;
  std::size_t met = token.first_seen / kTile;  // tiles before this one are met or need not be
  for (std::size_t i = bundle.run_begin; i < bundle.run_end; ++i) {
    const Run& run = work.runs()[i];
    if (index < run.token_begin || index >= run.token_end) continue;
    wrong += run.tile_begin <= met && run.tile_end > run.tile_begin ? 0 : 1;
    wrong += wrong_pages(step, token, run);
    met = std::max(met, run.tile_end);
  }
  return wrong + (met > token.position / kTile ? 0 : 1);
}

}  // namespace

TEST(plans_cover_every_token_once_in_its_own_pages) {
  std::mt19937 engine(1);
  for (int round = 0; round < 400; ++round) {
    const Geometry geometry{round % 3 == 0 ? std::size_t{60} : std::size_t{6}, round % 3 == 0 ? std::size_t{1} : 2, 16,
                            round % 2 == 0 ? std::size_t{0} : 1 + engine() % 300};
    const Step step(random_requests(engine, geometry.window));
    Work work;
    work.build(step.rows(), geometry, 1 + round % 5);
    std::multiset<std::int32_t> tokens;
    std::size_t wrong = 0;
    for (const Bundle& bundle : work.bundles()) {
      wrong += bundle.num_tokens * work.heads_per_part() <= kBundleRows ? 0 : 1;
      for (std::size_t i = 0; i < bundle.num_tokens; ++i) {
        tokens.insert(work.tokens()[bundle.token_begin + i]);
        wrong += wrong_runs(step, work, bundle, i);
      }
    }
    for (std::size_t t = 0; t < step.num_tokens(); ++t)
      wrong += tokens.count(static_cast<std::int32_t>(t)) == 1 ? 0 : 1;
    EXPECT(wrong == 0 && tokens.size() == step.num_tokens(), "round %d: %zu faults", round, wrong);
  }
}

TEST(members_take_all_segments_once_and_about_equal_work) {
  std::mt19937 engine(2);
  for (int round = 0; round < 200; ++round) {
    const Geometry geometry{6, 2, 16, 0};
    const Step step(random_requests(engine, 0));
    Work work;
    const int members = 1 + round % 6;
    work.build(step.rows(), geometry, members);
    std::multiset<std::pair<std::size_t, std::size_t>> seen;  // chain, run and tile
    std::size_t total = 0;
    std::size_t longest = 0;
    std::size_t most = 0;
    for (std::size_t m = 0; m < static_cast<std::size_t>(members); ++m) {
      std::size_t cost = 0;
      std::pair<std::size_t, std::size_t> last{SIZE_MAX, SIZE_MAX};
      for (Walk walk(work, work.cuts()[m], work.cuts()[m + 1]); !walk.is_done(); walk.advance()) {
        const Place& place = walk.place();
        for (std::size_t tile = place.tile_begin; tile < place.tile_end; ++tile) {
          seen.insert({place.chain, place.run * 1000 + tile});
        }
        if (last == std::pair{place.chain, place.segment}) continue;
        last = {place.chain, place.segment};
        const std::size_t length = work.segment_cost(work.bundles()[place.chain / work.num_slices()], place.segment);
        cost += length;
        longest = std::max(longest, length);
      }
      total += cost;
      most = std::max(most, cost);
    }
    std::size_t expected = 0;
    for (const Bundle& bundle : work.bundles()) {
      for (std::size_t i = bundle.run_begin; i < bundle.run_end; ++i) {
        expected += (work.runs()[i].tile_end - work.runs()[i].tile_begin) * work.num_slices();
      }
    }
    const bool is_once = seen.size() == expected && std::set(seen.begin(), seen.end()).size() == expected;
    EXPECT(is_once, "round %d: %zu tiles of %zu", round, seen.size(), expected);
    // A cut is at most half a segment, or the slack of 1/32, away from where it should be.
    const std::size_t fair = total / static_cast<std::size_t>(members);
    EXPECT(most <= fair + longest + fair / 16 + 1, "round %d: %zu of %zu, longest %zu", round, most, fair, longest);
  }
}

TEST(requests_that_share_pages_load_them_once) {
  // 64 requests of one token over 20 shared tiles, then one tile of their own each: 3 rows each, 16 requests a bundle.
  std::vector<Request> requests;
  for (std::int32_t b = 0; b < 64; ++b) {
    Request request{20 * kTile + 5, 1, shuffled_pages(0, 20 * kTilePages, 1)};
    request.pages.push_back(1000 + 37 * b % 64);
    requests.push_back(request);
  }
  const Step step(requests);
  Work work;
  work.build(step.rows(), {9, 3, 64, 0}, 2);
  std::size_t tiles = 0;
  for (const Run& run : work.runs()) tiles += run.tile_end - run.tile_begin;
  EXPECT(work.bundles().size() == 4, "%zu bundles", work.bundles().size());
  EXPECT(tiles == 4 * 20 + 64, "%zu tiles", tiles);
}

TEST(a_plan_allocates_nothing_for_a_step_no_larger_than_before) {
  std::mt19937 engine(3);
  const Step large(random_requests(engine, 0));
  Work work;
  work.build(large.rows(), {6, 2, 16, 0}, 3);
  const auto* tokens = work.tokens().data();
  const auto* runs = work.runs().data();
  const auto* bundles = work.bundles().data();
  work.build(large.rows(), {6, 2, 16, 0}, 3);
  EXPECT(tokens == work.tokens().data() && runs == work.runs().data() && bundles == work.bundles().data(), "moved");
}

TEST(a_step_without_tokens_has_an_empty_plan) {
  const Step step({});
  Work work;
  work.build(step.rows(), {6, 2, 16, 0}, 3);
  EXPECT(work.num_chains() == 0 && work.splits().empty(), "%zu chains", work.num_chains());
}

}  // namespace trivium::attention
