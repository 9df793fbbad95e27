// Stacks of epd, its workers and of clients that allow it, as they write them themselves (proto/stacks).
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/support_archive.pb.h"

namespace epd::cli {

// Folders of pages that this process may read: of its own user; for root those of all.
std::vector<std::string> StackFolders();

// Asks every process that has a page in `folders` for its stacks, waits for at most `patience`, and adds what is there, with the
// names of functions where the program's file is the one that ran. Of a process that has ended: what it wrote last. A page is
// believed only if its folder belongs to the user it names.
void AddStacks(const std::vector<std::string>& folders, absl::Duration patience,
               SupportArchive& archive);

// Stacks that processes of another node have written, with the names of functions where the same file is on this machine.
void AddWrittenStacks(const epd::v1::NodeExamination& said, SupportArchive::Node& out);

}  // namespace epd::cli
