#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/team.h"

namespace trivium {
namespace {

// How an idle worker, or a caller that waits for the last chunk, waits: it looks, then looks and yields, then sleeps.
//
// A decode step has a few hundred barriers some microseconds apart, which looking covers, as long as nobody takes a
// core. When the server does, for a part of a millisecond, the other thread must not sleep: it would be woken late, and
// maybe on the core of the one that woke it, so that both share a core until the system moves one some milliseconds
// later. Whoever wants the core of a yielding thread has it at once.
constexpr int kSpins = 2000;
constexpr int kSpinsBetweenYields = 16;
constexpr std::chrono::microseconds kYielding{2000};

void relax() {
#if defined(TRIVIUM_X86)
  __builtin_ia32_pause();
#endif
}

// Waits until `value` is no longer `old`: looks kSpins times, then for kYielding between yields, then sleeps.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  const auto end = std::chrono::steady_clock::now() + kYielding;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < kSpinsBetweenYields; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

struct Job {
  internal::ChunkFn fn = nullptr;
  void* context = nullptr;
  std::size_t range = 0;
  std::size_t grain = 1;
};

class Pool {
 public:
  explicit Pool(int count) {
    workers_.reserve(static_cast<std::size_t>(count - 1));
    for (int i = 1; i < count; ++i) workers_.emplace_back([this, i] { serve(i); });
  }

  ~Pool() {
    stopping_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // One caller at a time (guarded by the owner's mutex).
  void run(const Job& job) {
    job_ = job;
    team_fn_ = nullptr;
    start_and_finish([this] { take_chunks(); });
  }

  // Every worker runs `fn` once, as the member of its number; the caller is member 0.
  void run_members(internal::MemberFn fn, void* context) {
    Team::Shared shared{size()};
    job_ = {nullptr, context, 0, 1};
    team_fn_ = fn;
    team_shared_ = &shared;
    start_and_finish([&] {
      Team team(0, &shared);
      fn(context, team);
    });
  }

 private:
  // Wakes the workers, does the caller's part, and waits for theirs.
  template <class Part>
  void start_and_finish(Part&& part) {
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    part();
    for (int left = busy_.load(std::memory_order_acquire); left != 0; left = busy_.load(std::memory_order_acquire)) {
      wait_while(busy_, left);
    }
  }

  void take_chunks() {
    for (;;) {
      const std::size_t begin = next_.fetch_add(job_.grain, std::memory_order_relaxed);
      if (begin >= job_.range) return;
      job_.fn(job_.context, begin, std::min(begin + job_.grain, job_.range));
    }
  }

  void serve(int index) {
    // No epoch is missed: a job ends only when every worker has left it, one that started late included.
    unsigned seen = 0;
    for (;;) {
      wait_while(epoch_, seen);
      seen = epoch_.load(std::memory_order_acquire);
      if (stopping_.load(std::memory_order_relaxed)) return;
      if (team_fn_ != nullptr) {
        Team team(index, team_shared_);
        team_fn_(job_.context, team);
      } else {
        take_chunks();
      }
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  Job job_;
  internal::MemberFn team_fn_ = nullptr;
  Team::Shared* team_shared_ = nullptr;
  alignas(64) std::atomic<std::size_t> next_{0};
  alignas(64) std::atomic<int> busy_{0};
  alignas(64) std::atomic<unsigned> epoch_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

// The pool, its lock, and the size it will have when it is made. Allocated once and never freed, so that worker threads
// that outlive main() do not meet a destroyed object.
struct Shared {
  std::mutex mutex;
  Pool* pool = nullptr;
  int count = usable_cores();
};

Shared* g_shared = nullptr;

// This thread is inside a job of its own: a nested loop must not try the mutex that it already holds.
thread_local bool t_is_running = false;

// In the child of a fork the workers do not exist and the mutex may be held: start afresh, leaving the old one alone.
void start_afresh() {
  const int count = g_shared->count;
  g_shared = new Shared;
  g_shared->count = count;
}

Shared& shared() {
  static const bool made = [] {
    g_shared = new Shared;
    pthread_atfork(nullptr, nullptr, start_afresh);
    return true;
  }();
  static_cast<void>(made);
  return *g_shared;
}

// Cores by the quota of cgroup v2 (cpu.max: "quota period" or "max period"), or of v1; 0 when there is none.
int quota_cores() {
  double quota = 0;
  double period = 0;
  if (std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    const int fields = std::fscanf(file, "%lf %lf", &quota, &period);
    std::fclose(file);
    if (fields != 2) return 0;
  } else {
    const char* paths[] = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"};
    double* values[] = {&quota, &period};
    for (int i = 0; i < 2; ++i) {
      std::FILE* part = std::fopen(paths[i], "r");
      if (part == nullptr) return 0;
      const int fields = std::fscanf(part, "%lf", values[i]);
      std::fclose(part);
      if (fields != 1) return 0;
    }
  }
  if (quota <= 0 || period <= 0) return 0;
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

}  // namespace

int usable_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) cores = CPU_COUNT(&mask);
#endif
  const int quota = quota_cores();
  if (quota > 0) cores = std::min(cores, quota);
  return std::max(cores, 1);
}

int num_threads() {
  Shared& state = shared();
  const std::lock_guard lock(state.mutex);
  return state.count;
}

void set_num_threads(int count) {
  TRIV_CHECK(count >= 1 && count <= 1024, "threads must be 1 to 1024, not %d", count);
  Shared& state = shared();
  const std::lock_guard lock(state.mutex);
  if (state.pool != nullptr && state.pool->size() != count) {
    delete state.pool;
    state.pool = nullptr;
  }
  state.count = count;
}

namespace internal {

void run_chunks(std::size_t range, std::size_t grain, ChunkFn fn, void* context) {
  if (range == 0) return;
  if (range <= grain || t_is_running) return fn(context, 0, range);
  Shared& state = shared();
  const std::unique_lock lock(state.mutex, std::try_to_lock);
  if (!lock.owns_lock() || state.count == 1) return fn(context, 0, range);
  if (state.pool == nullptr) state.pool = new Pool(state.count);
  t_is_running = true;
  state.pool->run({fn, context, range, grain});
  t_is_running = false;
}

void run_members(MemberFn fn, void* context) {
  Team alone(0, nullptr);
  if (t_is_running) return fn(context, alone);
  Shared& state = shared();
  const std::unique_lock lock(state.mutex, std::try_to_lock);
  if (!lock.owns_lock() || state.count == 1) return fn(context, alone);
  if (state.pool == nullptr) state.pool = new Pool(state.count);
  t_is_running = true;
  state.pool->run_members(fn, context);
  t_is_running = false;
}

}  // namespace internal

void Team::meet(Shared& shared) {
  const unsigned round = shared.round.load(std::memory_order_relaxed);
  if (shared.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == shared.size) {
    shared.arrived.store(0, std::memory_order_relaxed);
    shared.round.store(round + 1, std::memory_order_release);
    shared.round.notify_all();
  } else {
    wait_while(shared.round, round);
  }
}

}  // namespace trivium
