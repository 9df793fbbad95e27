// The fake driver's machine, for the processes that a test starts.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {

// Processes that begin while it lives find the fake driver; what it wrote down is read here.
class FakeGpu {
 public:
  FakeGpu() {
    setenv("LD_LIBRARY_PATH", Folder().c_str(), 1);
    setenv("EPD_FAKE_CUDA", "", 1);
    setenv("EPD_FAKE_CUDA_FOLDER", folder_.path().c_str(), 1);
  }
  ~FakeGpu() {
    for (const char* name : {"LD_LIBRARY_PATH", "EPD_FAKE_CUDA", "EPD_FAKE_CUDA_FOLDER"}) {
      unsetenv(name);
    }
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  // Of the library, for a process that runs already, whose loader does not look there.
  static std::string Library() { return Folder() + "/libcuda.so.1"; }

  // What the fake driver does next, in whichever process it works.
  void Tell(const std::string& what) const { std::ofstream(folder_.path() + "/" + what) << "now"; }
  bool Heard(const std::string& what) const {
    return Eventually(10, [&] { return !std::filesystem::exists(folder_.path() + "/" + what); });
  }
  // Broken rules of all processes, a line each.
  std::string Violations() const { return Read("violations"); }
  // Kernels that have run, a line for each and process.
  std::string Launched() const { return Read("launched"); }
  // The program and the device of each context that a process has retained, a line each.
  std::string Contexts() const { return Read("contexts"); }
  // What all processes' streams have done, a line for each thing, where EPD_FAKE_CUDA says work=1.
  std::string Work() const { return Read("work"); }
  // How many of a communicator's marks of a kind there are in all: 'r' entered, 'a' aborted
  // (tests/fakes/cuda/nccl_mail.h).
  int CountNcclMarks(char kind) const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (!entry.is_directory()) continue;
      for (const auto& mark : std::filesystem::directory_iterator(entry.path())) {
        count += mark.path().filename().string()[0] == kind ? 1 : 0;
      }
    }
    return count;
  }
  // How often all processes together have called a function of the fake NCCL EP.
  int CountNcclEpCalls(const std::string& function) const {
    int count = 0;
    std::ifstream calls(folder_.path() + "/nccl_ep_calls");
    for (std::string line; std::getline(calls, line);) count += line == function ? 1 : 0;
    return count;
  }
  void Forget() const { std::filesystem::remove(folder_.path() + "/violations"); }

 private:
  std::string Read(const std::string& name) const {
    std::stringstream text;
    if (std::ifstream file(folder_.path() + "/" + name); file) text << file.rdbuf();
    return text.str();
  }
  static std::string Folder() { return std::filesystem::absolute("tests/fakes/cuda").string(); }

  const ScratchFolder folder_;
};

}  // namespace epd::testing
