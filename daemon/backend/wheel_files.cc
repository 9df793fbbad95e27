#include "daemon/backend/wheel_files.h"

#include <glob.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace epd {

void AddMatches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
}

std::vector<std::string> WheelFiles(const std::string& self, const std::string& in_lib,
                                    const std::string& in_packages) {
  std::vector<std::string> files;
  const size_t slash = self.rfind('/');
  if (slash == std::string::npos) return files;
  absl::string_view folder = absl::string_view(self).substr(0, slash);
  const std::string lib = absl::StrCat(folder, "/../lib/");
  AddMatches(lib + in_lib, files);
  AddMatches(absl::StrCat(lib, "python3*/site-packages/", in_packages), files);
  // Of Debian's own Python the folder is dist-packages.
  if (absl::ConsumeSuffix(&folder, "/epd/bin") && absl::EndsWith(folder, "-packages")) {
    AddMatches(absl::StrCat(folder, "/../../", in_lib), files);
    AddMatches(absl::StrCat(folder, "/", in_packages), files);
  }
  return files;
}

}  // namespace epd
