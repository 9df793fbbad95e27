// Goal: epd knows from the connection alone whom it does not serve, and says so and goes before they have said a word: they hear why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "client/c/epd_client.h"
#include "proto/epd/v1/attach.pb.h"
#include "tests/integration/client_c/harness/client_rank.h"

namespace epd::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kPermissionDenied = 7;  // gRPC's.

TEST(RefusedTest, ARefusalBeforeTheFirstWordIsHeard) {
  char folder[] = "/tmp/epd-refuses-XXXXXX";  // A socket's path is short.
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/epd.sock";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.copy(address.sun_path, sizeof address.sun_path - 1), sizeof address.sun_path - 1);
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  v1::ServerMessage answer;
  answer.mutable_goodbye()->mutable_status()->set_code(kPermissionDenied);
  answer.mutable_goodbye()->mutable_status()->set_message("this epd serves uid 7");
  const std::string bytes = answer.SerializeAsString();
  std::vector<int> kept;
  std::thread refuses([&] {
    for (int fd = accept(listener, nullptr, nullptr); fd >= 0;
         fd = accept(listener, nullptr, nullptr)) {
      EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
      shutdown(fd, SHUT_RDWR);
      kept.push_back(fd);
    }
  });
  for (int i = 0; i < 200; ++i) {  // In some of them it comes first.
    epd_client* client = nullptr;
    const Result result = Connect(path, &client);
    EXPECT_EQ(result.code, kPermissionDenied) << result.message;
    EXPECT_THAT(result.message, HasSubstr("uid 7"));
  }
  shutdown(listener, SHUT_RDWR);
  refuses.join();
  for (const int fd : kept) close(fd);
  close(listener);
  unlink(path.c_str());
  rmdir(folder);
}

}  // namespace
}  // namespace epd::testing
