// Whether the other end of a connection is still there, without taking a byte from it.
#pragma once

#include <sys/socket.h>

#include <cerrno>

namespace deepinfer::serve {

enum class Peer {
  kSilent,  // nothing to read
  kSpoke,   // bytes wait to be read
  kGone,    // it has closed its end, or the connection has failed
};

// Looks at a socket, which may be blocking or not. A socket that was called readable may be silent: the event can be that of bytes
// that another thread has read since.
inline Peer look_at_peer(int socket) {
  char byte = 0;
  for (;;) {
    const auto got = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0) return Peer::kSpoke;
    if (got == 0) return Peer::kGone;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Peer::kSilent : Peer::kGone;
  }
}

}  // namespace deepinfer::serve
