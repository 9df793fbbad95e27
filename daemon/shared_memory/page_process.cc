#include "daemon/shared_memory/page_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// Both sides are of one build; another one says so.
constexpr uint32_t kMagic = 0x45504431;

struct Order {
  uint32_t magic = kMagic;
  uint32_t action = 0;
  uint64_t num_ranges = 0;
  struct Range {
    uint64_t offset;
    uint64_t bytes;
  };
  std::array<Range, kMaxPagesOfOrder> ranges = {};
};

struct Descriptors {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxPagesOfOrder)> bytes = {};
};

absl::Status Ended() { return absl::UnavailableError("the process that makes pages has ended"); }

void DoOrder(int socket, const Order& order, absl::Span<const int> fds) {
  int32_t error = 0;
  if (order.magic != kMagic || order.num_ranges != fds.size()) error = EPROTO;
  for (size_t i = 0; i < fds.size() && error == 0; ++i) {
    error = DoPageAction(
        static_cast<PageAction>(order.action),
        {.fd = fds[i], .offset = order.ranges[i].offset, .bytes = order.ranges[i].bytes});
  }
  for (const int fd : fds) close(fd);
  // Who has closed the other end wants no answer.
  [[maybe_unused]] const ssize_t ignored = send(socket, &error, sizeof error, MSG_NOSIGNAL);
}

}  // namespace

absl::Status SendPageOrder(int socket, PageAction action, absl::Span<const FilePages> pages) {
  if (pages.empty() || pages.size() > kMaxPagesOfOrder) {
    return absl::InvalidArgumentError(
        absl::StrCat(pages.size(), " ranges of pages; from 1 to ", kMaxPagesOfOrder, " go"));
  }
  Order order = {.action = static_cast<uint32_t>(action), .num_ranges = pages.size()};
  Descriptors descriptors;
  iovec body = {.iov_base = &order, .iov_len = sizeof order};
  msghdr message = {};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = descriptors.bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof(int) * pages.size());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    order.ranges[i] = {.offset = pages[i].offset, .bytes = pages[i].bytes};
    std::memcpy(CMSG_DATA(header) + i * sizeof(int), &pages[i].fd, sizeof(int));
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET) return Ended();
    return absl::ResourceExhaustedError(
        absl::StrCat("an order to the process that makes pages: ", std::strerror(errno)));
  }
}

absl::StatusOr<int> ReceivePageAnswer(int socket) {
  for (;;) {
    int32_t error = 0;
    const ssize_t got = recv(socket, &error, sizeof error, MSG_DONTWAIT);
    if (got == sizeof error) return error;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::NotFoundError("not yet");
    return Ended();
  }
}

int PageProcessMain(int socket) {
  for (;;) {
    Order order;
    Descriptors descriptors;
    iovec body = {.iov_base = &order, .iov_len = sizeof order};
    msghdr message = {};
    message.msg_iov = &body;
    message.msg_iovlen = 1;
    message.msg_control = descriptors.bytes.data();
    message.msg_controllen = descriptors.bytes.size();
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0 ? 0 : 1;
    if (got != sizeof order) order.magic = 0;
    std::array<int, kMaxPagesOfOrder> fds = {};
    size_t num_fds = 0;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      num_fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::memcpy(fds.data(), CMSG_DATA(header), num_fds * sizeof(int));
    }
    DoOrder(socket, order, absl::MakeConstSpan(fds.data(), num_fds));
  }
}

}  // namespace epd
