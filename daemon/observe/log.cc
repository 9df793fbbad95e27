#include "daemon/observe/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <utility>

#include "daemon/observe/log_writer.h"

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

// Hands lines to a writer that waits for nothing.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LogWriter& writer() { return writer_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_.Write(std::string(line.data(), line.size()));
  }
  void flush_() override {}

  LogWriter writer_;
};

std::shared_ptr<LogSink> SinkInUse() {
  const std::shared_ptr<spdlog::logger> logger = spdlog::default_logger();
  return logger->sinks().empty() ? nullptr
                                 : std::dynamic_pointer_cast<LogSink>(logger->sinks().front());
}

}  // namespace

absl::Status OpenLog(const std::string& level, const std::string& file) {
  std::shared_ptr<LogSink> sink = SinkInUse();
  if (sink == nullptr) {
    sink = std::make_shared<LogSink>();
    auto logger = std::make_shared<spdlog::logger>("epd", sink);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%f%z %l %v");
    spdlog::set_default_logger(std::move(logger));
  }
  if (absl::Status used = sink->writer().Use(file); !used.ok())
    return absl::InvalidArgumentError(absl::StrCat("log_file: got '", file, "': ", used.message()));
  spdlog::default_logger()->set_level(spdlog::level::from_str(level));
  return absl::OkStatus();
}

void FlushLog(absl::Duration patience) {
  if (const std::shared_ptr<LogSink> sink = SinkInUse(); sink != nullptr)
    sink->writer().Flush(patience);
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
