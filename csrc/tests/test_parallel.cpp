#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "tests/check.h"

namespace trivium {
namespace {

// Runs a loop and says whether every index was visited exactly once.
bool covers_once(std::size_t range, std::size_t grain) {
  std::vector<int> visits(range, 0);
  parallel_for(range, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) ++visits[i];
  });
  for (const int count : visits) {
    if (count != 1) return false;
  }
  return true;
}

}  // namespace

TEST(every_index_is_visited_exactly_once) {
  for (const int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    for (const std::size_t range : {0, 1, 2, 17, 1000}) {
      for (const std::size_t grain : {1, 3, 1000}) {
        EXPECT(covers_once(range, grain), "threads %d, range %zu, grain %zu", threads, range, grain);
      }
    }
  }
}

TEST(many_short_loops_in_a_row_lose_no_work) {
  set_num_threads(4);
  for (int i = 0; i < 3000; ++i) EXPECT(covers_once(8, 1), "loop %d", i);
}

TEST(nested_loops_run_in_the_thread_that_meets_them) {
  set_num_threads(3);
  std::atomic<int> visits{0};
  parallel_for(6, 1, [&](std::size_t, std::size_t) {
    parallel_for(10, 1, [&](std::size_t begin, std::size_t end) { visits += static_cast<int>(end - begin); });
  });
  EXPECT(visits == 60, "%d", visits.load());
}

TEST(callers_in_several_threads_each_get_their_whole_loop) {
  set_num_threads(2);
  std::atomic<int> bad{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 300; ++i) bad += covers_once(50, 4) ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT(bad == 0, "%d", bad.load());
}

TEST(the_number_of_threads_may_change_between_loops) {
  for (int i = 0; i < 60; ++i) {
    set_num_threads(1 + i % 5);
    EXPECT(num_threads() == 1 + i % 5, "%d", num_threads());
    EXPECT(covers_once(64, 1), "round %d", i);
  }
}

TEST(thread_counts_outside_the_limits_are_refused) {
  for (const int count : {0, -3, 1025}) {
    bool is_refused = false;
    try {
      set_num_threads(count);
    } catch (const std::invalid_argument&) {
      is_refused = true;
    }
    EXPECT(is_refused, "%d", count);
  }
}

TEST(there_is_at_least_one_usable_core) { EXPECT(usable_cores() >= 1, "%d", usable_cores()); }

}  // namespace trivium
