// Runs a kernel's programs one after the other.
#pragma once

#include "instructions_on_cpu.h"

constexpr int GUARD_BYTES = 256;
constexpr u8 GARBAGE = 0xA5;

// Of whatever the compiled kernel names as shared, told by the linker.
extern "C" u8 __start_shared_memory[], __stop_shared_memory[];

// `early`: the kernel may begin before the one before it has ended, and waits for it by itself.
struct Grid {
  int programs, slices, threads, early, copies_are_late, backwards;
};

static void forget_last_program(const Grid& grid) {
  std::memset(__start_shared_memory, GARBAGE, __stop_shared_memory - __start_shared_memory);
  for (Warp& warp : warps) warp.meeting = {};
  for (Copies& copies : copies_of) copies = {};
  whole_program = {};
  for (bool& may : may_read) may = !grid.early;
}

static std::string what_is_left(const Grid& grid) {
  for (int thread = 0; thread < grid.threads; thread++)
    if (!may_read[thread]) return "thread " + std::to_string(thread) + " has not waited for the kernel before";
  for (const Copies& copies : copies_of) {
    if (!copies.begun.empty()) return "copies were begun that belong to no group";
    if (!copies.waited_for.empty()) return "nobody has waited for a lane that has copied";
    for (const auto& group : copies.groups)
      if (!group.empty()) return "copies are under way when the program has ended";
  }
  return "";
}

// What went wrong, in `message`: an empty one if nothing did. Gives how many bytes were copied.
template <typename Kernel>
i64 run_programs(const Grid& grid, char* message, int room, Kernel kernel, const u8* guard) {
  program_threads = grid.threads;
  copies_are_late = grid.copies_are_late;
  copied_bytes = 0;
  std::string wrong;
  for (int number = 0; number < grid.programs * grid.slices && wrong.empty(); number++) {
    blockIdx = {static_cast<unsigned>(number % grid.programs), static_cast<unsigned>(number / grid.programs)};
    forget_last_program(grid);
    wrong = fibers.run(grid.threads, grid.backwards, kernel);
    if (wrong.empty()) wrong = what_is_left(grid);
    for (int place = 0; guard != nullptr && place < GUARD_BYTES && wrong.empty(); place++)
      if (guard[place] != GARBAGE) wrong = "something was written behind the program's memory";
    if (!wrong.empty()) wrong = "program " + std::to_string(number) + ": " + wrong;
  }
  std::strncpy(message, wrong.c_str(), room - 1);
  return copied_bytes;
}
