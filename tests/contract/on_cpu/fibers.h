// The threads of a program as fibers of one thread: each runs until it meets others that have yet to come.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct Index {
  unsigned x, y;
};
static Index threadIdx, blockIdx;

// Where threads wait for each other, again and again.
struct Meeting {
  const char* name = nullptr;
  int arrived = 0;
  unsigned long long held = 0;  // how often all have come
};

class Fibers {
 public:
  // Runs so many threads, the last ones first if `backwards`; tells what went wrong, nothing if all is well.
  std::string run(int threads, bool backwards, std::function<void()> kernel) {
    kernel_ = std::move(kernel);
    failure_.clear();
    grow(threads);
    for (int number = 0; number < threads; number++) begin(fibers_[number]);
    for (int left = threads; left > 0 && failure_.empty();) {
      bool moved = false;
      for (int turn = 0; turn < threads && failure_.empty(); turn++) {
        const int number = backwards ? threads - 1 - turn : turn;
        if (!may_run(fibers_[number])) continue;
        resume(number);
        left -= fibers_[number].ended;
        moved = true;
      }
      if (!moved && failure_.empty()) failure_ = "deadlock: " + who_waits(threads);
    }
    return failure_;
  }

  // Waits until so many threads are here; the last one does the work.
  template <typename Work>
  void meet(Meeting& meeting, int expected, const char* name, Work work) {
    if (meeting.arrived == 0) meeting.name = name;
    if (std::strcmp(meeting.name, name) != 0)
      fail("thread " + std::to_string(threadIdx.x) + " came to " + name + ", others wait at " + meeting.name);
    if (++meeting.arrived < expected) return wait_for(meeting);
    work();
    meeting.arrived = 0;
    meeting.held++;
  }

  // Ends the program.
  [[noreturn]] void fail(const std::string& why) {
    failure_ = why;
    _longjmp(scheduler_, 1);
  }

 private:
  static constexpr size_t STACK_BYTES = 64 * 1024;

  struct Fiber {
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    ucontext_t start;
    jmp_buf place;
    bool begun, ended;
    const Meeting* waits_for;
    unsigned long long held;
  };

  void grow(int threads) {
    while (static_cast<int>(fibers_.size()) < threads) fibers_.emplace_back();
  }

  static void begin(Fiber& fiber) {
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = STACK_BYTES;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter, 0);
    fiber.begun = fiber.ended = false;
    fiber.waits_for = nullptr;
  }

  static void enter();

  static bool may_run(const Fiber& fiber) {
    return !fiber.ended && (fiber.waits_for == nullptr || fiber.waits_for->held != fiber.held);
  }

  // ucontext's own switch asks the system for signals each time, which takes longer than all the rest.
  void resume(int number) {
    threadIdx.x = number;
    Fiber& fiber = fibers_[number];
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
  }

  __attribute__((noinline)) void wait_for(const Meeting& meeting) {
    Fiber& fiber = fibers_[threadIdx.x];
    fiber.waits_for = &meeting;
    fiber.held = meeting.held;
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
  }

  std::string who_waits(int threads) const {
    std::string text;
    int shown = 0;
    for (int number = 0; number < threads && shown < 4; number++) {
      const Fiber& fiber = fibers_[number];
      if (fiber.ended) continue;
      text += (shown++ ? ", thread " : "thread ") + std::to_string(number) + " waits at " + fiber.waits_for->name +
              " with " + std::to_string(fiber.waits_for->arrived) + " there";
    }
    return text;
  }

  std::vector<Fiber> fibers_;
  std::function<void()> kernel_;
  std::string failure_;
  jmp_buf scheduler_;
};

static Fibers fibers;

inline void Fibers::enter() {
  fibers.kernel_();
  fibers.fibers_[threadIdx.x].ended = true;
  _longjmp(fibers.scheduler_, 1);
}
