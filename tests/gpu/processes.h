// Processes of a probe: forked before any of them has touched CUDA, with a socket to pass descriptors.
#pragma once

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/driver.h"

namespace epd::gpu {

struct Child {
  pid_t pid = -1;
  int socket = -1;
};

// Runs body(socket) in a child that dies with its parent.
template <typename Body>
Child Spawn(Body body) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) std::abort();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[0]);
    std::exit(body(sockets[1]));
  }
  close(sockets[1]);
  return {pid, sockets[0]};
}

// Exit status of a child, or -1 if a signal ended it.
inline int Join(const Child& child) {
  int status = 0;
  waitpid(child.pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Whether a child of this program can open a GPU; its exit status otherwise.
inline int ProbeGpu() {
  const Child child = Spawn([](int) {
    Driver driver;
    Device device;
    OpenOrExit(&driver, &device);
    return kPassed;
  });
  return Join(child);
}

inline void SendDescriptor(int socket, int descriptor) {
  char byte = 1;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  if (sendmsg(socket, &message, 0) != 1) std::abort();
}

// -1 if the other side has gone.
inline int ReceiveDescriptor(int socket) {
  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, 0) != 1) return -1;
  int descriptor = -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

inline void Say(int socket, char what) {
  if (send(socket, &what, 1, MSG_NOSIGNAL) != 1) std::abort();
}

// 0 if the other side has gone.
inline char Hear(int socket) {
  char what = 0;
  return recv(socket, &what, 1, 0) == 1 ? what : '\0';
}

}  // namespace epd::gpu
