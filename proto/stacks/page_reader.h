// Asks a process for its stacks, and reads what it wrote.
#pragma once

#include <memory>
#include <string>

#include "proto/stacks/stack_page.h"

namespace epd::stacks {

// A line of /proc/PID/status, without its name and the blanks around; "": there is none.
std::string StatusOf(int pid, const std::string& name);

// Whether the process runs as `uid` and handles SIGUSR2: for one that does not the signal is the end.
bool HandlesTheSignal(int pid, uint32_t uid);

// Has a process of this user that has a page write its stacks, which it does soon. False: it has no page, or it handles
// the signal no more.
bool AskForStacks(int pid);

// What a process of this user has in its page; null: it has none.
std::unique_ptr<StackPage> ReadPageOf(int pid);

// What is in use of a page: from its beginning to its last module, and its threads.
struct UsedParts {
  std::string modules;
  std::string threads;
};
UsedParts TakeUsedParts(const StackPage& page);
// The page that they are of, whoever they come from. "", or why they are none.
std::string PutTogether(const UsedParts& parts, StackPage* page);

}  // namespace epd::stacks
