#include "client/cli/symbol_table.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/c/unique_fd.h"

namespace epd::cli {
namespace {

// No table of a library that exists is larger; a damaged file may say so.
constexpr uint64_t kMaxSection = 512 << 20;

// Reads parts of a file; after the first failure nothing.
class ElfFile {
 public:
  explicit ElfFile(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat facts = {};
    if (fd_.get() < 0 || fstat(fd_.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
      status_ = absl::NotFoundError(absl::StrCat("'", path, "': ", std::strerror(errno)));
      return;
    }
    header_ = One<Elf64_Ehdr>(0);
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 ||
        header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_shentsize != sizeof(Elf64_Shdr)) {
      Fail("is no ELF file of 64 bits");
      return;
    }
    sections_ = Many<Elf64_Shdr>(header_.e_shoff, header_.e_shnum * sizeof(Elf64_Shdr));
  }

  const absl::Status& status() const { return status_; }

  // Null: none of that type.
  const Elf64_Shdr* Section(uint32_t type) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == type) return &section;
    }
    return nullptr;
  }

  // The bytes of GNU's build id; "": none.
  std::string BuildId() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_NOTE || section.sh_size > 4096) continue;
      const std::vector<char> notes = Many<char>(section.sh_offset, section.sh_size);
      size_t at = 0;
      while (at + sizeof(Elf64_Nhdr) <= notes.size()) {
        Elf64_Nhdr note;
        std::memcpy(&note, notes.data() + at, sizeof note);
        const size_t name = at + sizeof note;
        const size_t text = name + ((size_t{note.n_namesz} + 3) & ~size_t{3});
        at = text + ((size_t{note.n_descsz} + 3) & ~size_t{3});
        if (at > notes.size()) break;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            std::memcmp(notes.data() + name, "GNU", 4) == 0)
          return std::string(notes.data() + text, note.n_descsz);
      }
    }
    return "";
  }

  void AddFunctions(const Elf64_Shdr& symbols, SymbolTable& table) {
    if (symbols.sh_link >= sections_.size()) return Fail("has a symbol table without names");
    const Elf64_Shdr& strings = sections_[symbols.sh_link];
    std::vector<char> names = Many<char>(strings.sh_offset, strings.sh_size);
    const auto all = Many<Elf64_Sym>(symbols.sh_offset, symbols.sh_size);
    if (!status_.ok()) return;
    names.push_back('\0');
    for (const Elf64_Sym& symbol : all) {
      const unsigned type = ELF64_ST_TYPE(symbol.st_info);
      const bool is_function = type == STT_FUNC || type == STT_GNU_IFUNC;
      if (!is_function || symbol.st_value == 0 || symbol.st_name >= names.size()) continue;
      table.Add(symbol.st_value, symbol.st_size, names.data() + symbol.st_name);
    }
  }

 private:
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("'", path_, "' ", what));
  }

  template <typename T>
  std::vector<T> Many(uint64_t offset, uint64_t bytes) {
    if (!status_.ok() || bytes > kMaxSection || offset > INT64_MAX - kMaxSection) {
      Fail("is damaged");
      return {};
    }
    std::vector<T> read(bytes / sizeof(T));
    for (size_t done = 0; done < read.size() * sizeof(T);) {
      const ssize_t got = pread(fd_.get(), reinterpret_cast<char*>(read.data()) + done,
                                read.size() * sizeof(T) - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        Fail("ends early");
        return {};
      }
      done += static_cast<size_t>(got);
    }
    return read;
  }

  template <typename T>
  T One(uint64_t offset) {
    const std::vector<T> read = Many<T>(offset, sizeof(T));
    return read.empty() ? T{} : read.front();
  }

  const std::string path_;
  const client::UniqueFd fd_;
  absl::Status status_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
};

std::string Demangled(const std::string& name) {
  if (!absl::StartsWith(name, "_Z")) return name;  // Else a C function `f` would be the type float.
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

}  // namespace

absl::StatusOr<SymbolTable> SymbolTable::Read(const std::string& path,
                                              const std::string& build_id) {
  ElfFile file(path);
  if (!file.status().ok()) return file.status();
  if (!build_id.empty() && file.BuildId() != build_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' is another build than the one that ran"));
  }
  const Elf64_Shdr* symbols = file.Section(SHT_SYMTAB);
  if (symbols == nullptr) symbols = file.Section(SHT_DYNSYM);
  SymbolTable table;
  if (symbols != nullptr) file.AddFunctions(*symbols, table);
  if (!file.status().ok()) return file.status();
  if (table.functions_.empty())
    return absl::NotFoundError(absl::StrCat("'", path, "' has no symbols"));
  return table;
}

void SymbolTable::Add(uint64_t begin, uint64_t bytes, const std::string& name) {
  functions_.insert({begin, {bytes, name}});
}

std::string SymbolTable::NameOf(uint64_t address) const {
  auto found = functions_.upper_bound(address);
  if (found == functions_.begin()) return "";
  --found;
  const auto& [begin, function] = *found;
  // Those written in assembler have no size.
  if (function.bytes != 0 && address - begin >= function.bytes) return "";
  return absl::StrCat(Demangled(function.name), "+0x", absl::Hex(address - begin));
}

}  // namespace epd::cli
