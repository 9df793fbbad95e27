// The file that a page of stacks is: made, found by its name, removed.
#pragma once

#include <cstdint>
#include <string>

#include "proto/stacks/stack_page.h"

namespace epd::stacks {

// A page that this process has made. Its lock is held for as long as the descriptor is open: that is how others know that it is in use.
struct PageFile {
  StackPage* page = nullptr;  // Mapped for the life of the process: a signal may come late.
  int fd = -1;
  std::string folder;
  std::string name;  // In the folder; under ".new-<pid>" until it is shown.
};

// This process's, not shown yet. "", or why not.
std::string MakePage(const std::string& folder, PageFile* file);

// Whether this process has a page there that is shown.
bool IsShown(const std::string& folder);

// From now on whoever looks finds it. "", or why not.
std::string Show(const PageFile& file);

// Removes it, and the folder if it is the last one.
void Remove(const PageFile& file);

// Removes pages of ended processes: those without stacks, and of the others all but the `kept` last ones.
void RemoveLeftOver(const std::string& folder, size_t kept);

// Field 22 of /proc/PID/stat; 0: there is no such process.
uint64_t StartTicksOf(const std::string& pid);

}  // namespace epd::stacks
