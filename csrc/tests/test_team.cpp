// Members of a team: everybody takes part once, and a barrier orders what is before it with what is after it.
#include "base/team.h"

#include <atomic>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "tests/check.h"

namespace trivium {

TEST(every_member_runs_once_and_shares_cover_all_items) {
  for (const int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    std::vector<int> visits(101, 0);
    std::atomic<int> members{0};
    run_team([&](Team& team) {
      members.fetch_add(1);
      const Team::Share share = team.share(visits.size());
      for (std::size_t i = share.begin; i < share.end; ++i) ++visits[i];
    });
    EXPECT(members.load() == threads, "%d members of %d threads", members.load(), threads);
    for (std::size_t i = 0; i < visits.size(); ++i) EXPECT(visits[i] == 1, "item %zu: %d visits", i, visits[i]);
  }
}

TEST(what_is_written_before_a_barrier_is_seen_after_it) {
  for (const int threads : {2, 3, 5}) {
    set_num_threads(threads);
    std::vector<int> values(static_cast<std::size_t>(threads), 0);
    std::atomic<int> wrong{0};
    run_team([&](Team& team) {
      for (int round = 1; round <= 500; ++round) {
        values[static_cast<std::size_t>(team.index())] = round;
        team.barrier();
        for (const int value : values) wrong.fetch_add(value == round ? 0 : 1, std::memory_order_relaxed);
        team.barrier();
      }
    });
    EXPECT(wrong.load() == 0, "%d stale values with %d threads", wrong.load(), threads);
  }
}

TEST(a_team_inside_a_team_and_beside_another_is_a_team_of_one) {
  set_num_threads(2);
  std::atomic<int> inner{0};
  run_team([&](Team&) { run_team([&](Team& team) { inner.fetch_add(team.size()); }); });
  EXPECT(inner.load() >= 1 && inner.load() <= 4, "inner members %d", inner.load());
  std::vector<std::thread> callers;
  std::atomic<int> runs{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int j = 0; j < 200; ++j) {
        run_team([&](Team& team) {
          team.barrier();
          if (team.index() == 0) runs.fetch_add(1);
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT(runs.load() == 800, "%d runs", runs.load());
}

}  // namespace trivium
