// Files that Python's wheels bring, beside the program that looks for them.
#pragma once

#include <string>
#include <vector>

namespace epd {

// Of the environment that the program at `self` is installed in, as a program of its bin or inside the package epd
// (site-packages/epd/bin): what matches `in_lib` in its lib, then what matches `in_packages` among its packages, both
// patterns as of glob. Nowhere else: a folder above one that was unpacked in /tmp is anybody's.
std::vector<std::string> WheelFiles(const std::string& self, const std::string& in_lib,
                                    const std::string& in_packages);

// Appends the paths that match, sorted.
void AddMatches(const std::string& pattern, std::vector<std::string>& paths);

}  // namespace epd
