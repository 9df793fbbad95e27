#include "daemon/observe/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/strip.h"
#include "daemon/observe/log_writer.h"
#include "proto/epd/v1/text.h"

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
  std::string Recent() {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& line : recent_) {
      absl::string_view text = line;
      absl::ConsumeSuffix(&text, "\n");
      absl::StrAppend(&all, text::Clean({text.data(), text.size()}, text.size()), "\n");
    }
    return all;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    Keep(std::string(line.data(), line.size()));
    writer_.Write(recent_.back());
  }
  void flush_() override {}

  void Keep(std::string line) {
    recent_bytes_ += line.size();
    recent_.push_back(std::move(line));
    while (recent_bytes_ > kRecentLogBytes && recent_.size() > 1) {
      recent_bytes_ -= recent_.front().size();
      recent_.pop_front();
    }
  }

  LogWriter writer_;
  std::deque<std::string> recent_;  // Under mutex_, as all of base_sink.
  size_t recent_bytes_ = 0;
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

std::string RecentLog() {
  const std::shared_ptr<LogSink> sink = SinkInUse();
  return sink == nullptr ? "" : sink->Recent();
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
