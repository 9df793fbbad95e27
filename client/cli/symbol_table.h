// Names of functions by their addresses, from the symbol table of an ELF file.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace epd::cli {

// Of one program or library. Not thread-safe.
class SymbolTable {
 public:
  // Reads its full symbol table, or if it was stripped the dynamic one.
  //   NOT_FOUND         there is no such file, or it has no symbols
  //   INVALID_ARGUMENT  it is no ELF file of 64 bits, little endian, or is damaged
  //   FAILED_PRECONDITION  its build id is another one than `build_id` (bytes; "": not compared): another build, whose
  //                        names would be wrong
  static absl::StatusOr<SymbolTable> Read(const std::string& path, const std::string& build_id);

  // "epd::ExecLoop::Run()+0x1c"; "" if no symbol covers it. `address` as in the file.
  std::string NameOf(uint64_t address) const;

  // A function at [begin, begin + bytes).
  void Add(uint64_t begin, uint64_t bytes, const std::string& name);

 private:
  struct Function {
    uint64_t bytes = 0;
    std::string name;  // As the linker knows it.
  };
  std::map<uint64_t, Function> functions_;
};

}  // namespace epd::cli
