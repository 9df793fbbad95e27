// A process writes the stacks of its threads when its own user asks it to (SIGUSR2), whatever its threads do: no thread has to
// wake up and no lock to be had. No debugger is needed, so it works for a process that nobody may trace.
//
// The thread that takes the signal notes all threads of the process in the page and signals each of them; each writes its own
// frames, in the signal's handler. The handler calls only what may be called there (signal-safety(7)) and the unwinder, which the
// start has loaded, or none.
#pragma once

#include <string>

#include "proto/stacks/stack_page.h"

namespace epd::stacks {

// How frames are found.
enum class Frames {
  kUnwound,  // As they are. Not where code is made at run time: see stack_scan.h.
  kScanned,  // And some that were.
};

// Makes this process's page, and takes SIGUSR2 from then on. "", or why not: then SIGUSR2 is as it was. Once in a process; before
// it has many threads, or at least while nobody else changes the signal. Removes pages that ended processes of this user have
// left: those without stacks, and of the others all but the last few.
// Another copy of this library in the process may have done so: then "" and nothing is done.
//   `folder`  empty: kFolderPrefix and the user's number
std::string Start(Frames frames, const std::string& folder = "");

// Ignores SIGUSR2 again, and removes the page. Nothing in a forked child.
void Stop();

// Writes all stacks now and waits a moment for the threads. For the handler of a signal that ends the process.
void WriteBeforeTheEnd();

}  // namespace epd::stacks
