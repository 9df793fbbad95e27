#include "proto/epd/v1/text.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace epd::text {
namespace {

TEST(Clean, KeepsWhatPeopleRead) {
  EXPECT_EQ(Clean("python3 train.py", 200), "python3 train.py");
  EXPECT_EQ(Clean("Köln \u4e16 \U0001f600", 200), "Köln \u4e16 \U0001f600");
  EXPECT_EQ(Clean("", 200), "");
}

TEST(Clean, ControlCharactersAndBytesThatAreNoUtf8AreQuestionMarks) {
  EXPECT_EQ(Clean(std::string_view("a\0b\n\x1b[31m\x7f", 10), 200), "a?b??[31m?");
  EXPECT_EQ(Clean("\xff\xfe", 200), "??");
  EXPECT_EQ(Clean("\xc3", 200), "?");                 // A character that is cut.
  EXPECT_EQ(Clean("\xe4\xb8", 200), "??");            // The same, of three bytes.
  EXPECT_EQ(Clean("\xc0\xaf", 200), "??");            // Overlong.
  EXPECT_EQ(Clean("\xed\xa0\x80", 200), "???");       // A surrogate.
  EXPECT_EQ(Clean("\xf4\x90\x80\x80", 200), "????");  // Beyond U+10FFFF.
  EXPECT_EQ(Clean("\x80z", 200), "?z");
}

TEST(Clean, CutsBetweenTwoCharacters) {
  const std::string name = std::string(199, 'x') + "é";
  EXPECT_EQ(Clean(name, 201), name);
  EXPECT_EQ(Clean(name, 200), std::string(199, 'x'));
  EXPECT_EQ(Clean("\U0001f600\U0001f600", 7), "\U0001f600");
  EXPECT_EQ(Clean("abc", 0), "");
}

// Every string of three bytes that begins as a character of two or more comes out as UTF-8 that is clean already.
TEST(Clean, IsIdempotentForEveryBeginningOfACharacter) {
  for (int first = 0x80; first < 0x100; ++first) {
    for (int second = 0; second < 0x100; ++second) {
      for (const int third : {0x00, 0x41, 0x7f, 0x80, 0xbf, 0xff}) {
        const std::string text = {static_cast<char>(first), static_cast<char>(second),
                                  static_cast<char>(third)};
        const std::string clean = Clean(text, 3);
        ASSERT_LE(clean.size(), text.size());
        ASSERT_EQ(Clean(clean, 3), clean) << first << " " << second << " " << third;
        for (std::string_view rest = clean; !rest.empty();) {
          const std::size_t size = CharacterBytes(rest);
          ASSERT_GT(size, 0u) << first << " " << second << " " << third;
          rest.remove_prefix(size);
        }
      }
    }
  }
}

TEST(Cut, KeepsWholeCharacters) {
  EXPECT_EQ(Cut("expert", 31), "expert");
  EXPECT_EQ(Cut("expert", 3), "exp");
  EXPECT_EQ(Cut("exé", 3), "ex");
  EXPECT_EQ(Cut("\U0001f600", 3), "");
}

TEST(Write, CutsBetweenTwoCharactersAndEndsWithZero) {
  char field[5] = "????";
  Write(std::string("abcé"), field);
  EXPECT_EQ(Read(field), "abc");
  Write(std::string_view("abc"), field);
  EXPECT_EQ(Read(field), "abc");
  Write(std::string_view(), field);
  EXPECT_EQ(Read(field), "");
}

}  // namespace
}  // namespace epd::text
