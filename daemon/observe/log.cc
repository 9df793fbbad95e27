#include "daemon/observe/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <memory>
#include <utility>

namespace epd {
namespace {

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }

bool IsPlain(absl::string_view value) {
  for (const char c : value) {
    if (IsControl(c) || c == ' ' || c == '"' || c == '=' || c == '\\') return false;
  }
  return !value.empty();
}

// Puts it into double quotes, on one line whatever it holds. UTF-8 stays readable.
std::string Quote(absl::string_view value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (IsControl(c)) {
      absl::StrAppend(&quoted, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<size_t>(level)];
}

}  // namespace

absl::Status OpenLog(const std::string& level, const std::string& file) {
  std::shared_ptr<spdlog::sinks::sink> sink;
  try {
    if (file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
    }
  } catch (const std::exception& e) {  // spdlog's way of saying that the file cannot be opened.
    return absl::InvalidArgumentError(absl::StrCat("log_file: got '", file, "': ", e.what()));
  }
  auto logger = std::make_shared<spdlog::logger>("epd", std::move(sink));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%f%z %l %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

std::string FormatLine(absl::string_view what, std::initializer_list<LogField> fields) {
  std::string line = absl::StrCat("event=", Quote(what));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=",
                    IsPlain(field.value) ? field.value : Quote(field.value));
  }
  return line;
}

void Log(LogLevel level, absl::string_view what, std::initializer_list<LogField> fields) {
  if (!spdlog::should_log(ToSpdlog(level))) return;
  const std::string line = FormatLine(what, fields);
  spdlog::default_logger_raw()->log(ToSpdlog(level),
                                    spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace epd
