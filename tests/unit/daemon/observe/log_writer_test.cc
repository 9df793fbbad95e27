// Goal: whoever logs waits for no reader, and when the reader is back it gets what was kept, in order, and how much was
// not.
#include "daemon/observe/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/core/unique_fd.h"
#include "tests/fakes/failing_threads.h"

namespace epd {
namespace {

using epd::testing::g_threads_left;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kRoom = 256 << 10;

TEST(LogWriterTest, AStoppedReaderKeepsNobodyWaitingAndIsToldWhatItMissed) {
  const std::string path = ::testing::TempDir() + "/reader";
  std::remove(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const UniqueFd reader(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  LogWriter writer(kRoom);
  ASSERT_TRUE(writer.Use(path).ok());
  // More than the pipe and the queue hold. Would hang if a line waited for the reader.
  constexpr int kLines = 10'000;
  const std::string filler(90, 'x');
  for (int i = 0; i < kLines; ++i) writer.Write(absl::StrCat(i, " ", filler, "\n"));

  std::string got;
  char bytes[1 << 16];
  while (got.find("lines dropped") == std::string::npos || got.back() != '\n') {
    if (const ssize_t n = read(reader.get(), bytes, sizeof bytes); n > 0) {
      got.append(bytes, static_cast<size_t>(n));
    }
  }
  const std::vector<std::string> lines = absl::StrSplit(got, '\n', absl::SkipEmpty());
  for (size_t i = 0; i + 1 < lines.size(); ++i)
    ASSERT_THAT(lines[i], StartsWith(absl::StrCat(i, " ")));
  EXPECT_THAT(lines.back(), HasSubstr(absl::StrCat("count=", kLines - (lines.size() - 1))));
  writer.Write("again\n");
  writer.Flush(absl::Seconds(10));
  EXPECT_EQ(read(reader.get(), bytes, sizeof bytes), 6);
}

TEST(LogWriterTest, FlushGivesUpOnAStoppedReader) {
  const std::string path = ::testing::TempDir() + "/stopped";
  std::remove(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const UniqueFd reader(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  LogWriter writer(kRoom);
  ASSERT_TRUE(writer.Use(path).ok());
  writer.Write(std::string(kRoom, 'x'));
  writer.Flush(absl::Milliseconds(10));
}

TEST(LogWriterTest, WithoutAThreadTheFirstLineSaysSoAndEachIsWrittenAtOnce) {
  const std::string path = ::testing::TempDir() + "/no_thread";
  ::testing::internal::CaptureStderr();
  g_threads_left = 0;
  LogWriter writer(kRoom);
  g_threads_left = -1;
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the log has no thread of its own\" why=\"no thread 'epd-log': Resource "
                        "temporarily unavailable"));
  ASSERT_TRUE(writer.Use(path).ok());
  writer.Write("one\n");
  writer.Write("two\n");
  std::string written;
  std::getline(std::ifstream(path), written, '\0');
  EXPECT_EQ(written, "one\ntwo\n");
  writer.Flush(absl::InfiniteDuration());
}

}  // namespace
}  // namespace epd
