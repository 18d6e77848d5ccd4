#include "serve/peer.h"

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

namespace deepinfer::serve {
namespace {

class PeerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0); }
  void TearDown() override {
    for (const int end : ends_)
      if (end >= 0) ::close(end);
  }
  int ends_[2] = {-1, -1};
};

TEST_F(PeerTest, WhoSaysNothingIsStillThere) {
  EXPECT_EQ(look_at_peer(ends_[0]), Peer::kSilent);
}

TEST_F(PeerTest, BytesAreSeenAndLeft) {
  ASSERT_EQ(::write(ends_[1], "ab", 2), 2);
  EXPECT_EQ(look_at_peer(ends_[0]), Peer::kSpoke);
  char bytes[2] = {};
  ASSERT_EQ(::read(ends_[0], bytes, 2), 2);
  EXPECT_EQ(bytes[0], 'a');
  EXPECT_EQ(look_at_peer(ends_[0]), Peer::kSilent);  // what a late event of those bytes finds
}

TEST_F(PeerTest, AClosedOrBrokenConnectionIsGone) {
  ::close(ends_[1]);
  ends_[1] = -1;
  EXPECT_EQ(look_at_peer(ends_[0]), Peer::kGone);
  EXPECT_EQ(look_at_peer(-1), Peer::kGone);
}

}  // namespace
}  // namespace deepinfer::serve
