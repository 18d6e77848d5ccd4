#include "serve/tenant_store.h"

#include <gtest/gtest.h>

namespace deepinfer::serve {
namespace {

bool say(ResponseStore& store, const std::string& tenant, const std::string& id, const std::string& text) {
  return store.change(tenant, id, [&](StoredResponse& stored) { stored.response = text; });
}

TEST(TenantStore, KeepsEachTenantsOwn) {
  ResponseStore store({});
  store.put("a", "r1", {"one", "in"});
  EXPECT_EQ(store.find("a", "r1")->response, "one");
  EXPECT_EQ(store.find("a", "r1")->input, "in");
  EXPECT_FALSE(store.find("b", "r1"));
  EXPECT_FALSE(store.erase("b", "r1"));
  EXPECT_FALSE(say(store, "b", "r1", "other"));
  EXPECT_TRUE(say(store, "a", "r1", "longer"));
  EXPECT_EQ(store.find("a", "r1")->response, "longer");
  EXPECT_EQ(store.find("a", "r1")->input, "in");
  EXPECT_EQ(store.bytes(), 10U);
  store.put("a", "r1", {"new", ""});
  EXPECT_EQ(store.size(), 1U);
  EXPECT_TRUE(store.erase("a", "r1"));
  EXPECT_FALSE(store.erase("a", "r1"));
  EXPECT_EQ(store.size(), 0U);
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(TenantStore, ForgetsTheOldestOfWhoHoldsMost) {
  ResponseStore store({.entries = 4, .bytes = 100, .life_s = 10});
  store.put("small", "s", {"x", ""});
  for (const char* id : {"1", "2", "3", "4", "5"})
    store.put("big", id, {"x", ""});
  EXPECT_EQ(store.size(), 4U);
  EXPECT_TRUE(store.find("small", "s"));
  EXPECT_FALSE(store.find("big", "2"));
  EXPECT_TRUE(store.find("big", "3"));
  store.put("big", "6", {std::string(90, 'x'), ""});
  EXPECT_TRUE(store.find("small", "s"));
  EXPECT_TRUE(store.find("big", "6"));
  EXPECT_LE(store.bytes(), 100U);
  store.put("big", "7", {std::string(200, 'x'), ""});  // more than there is room for
  EXPECT_FALSE(store.find("big", "7"));
  EXPECT_TRUE(store.find("small", "s"));
  EXPECT_TRUE(say(store, "small", "s", std::string(99, 'x')));
  EXPECT_FALSE(say(store, "small", "none", ""));
}

TEST(TenantStore, ForgetsAfterItsTime) {
  std::int64_t now = 0;
  ResponseStore store({.entries = 4, .bytes = 100, .life_s = 10}, [&] { return now; });
  store.put("a", "r", {"x", ""});
  now = 9;
  store.put("a", "s", {"x", ""});
  EXPECT_TRUE(store.find("a", "r"));
  now = 10;
  EXPECT_FALSE(store.find("a", "r"));
  EXPECT_TRUE(store.find("a", "s"));
  EXPECT_EQ(store.size(), 1U);
}

TEST(TenantStore, MayBeOff) {
  ResponseStore store({.entries = 0, .bytes = 100, .life_s = 10});
  EXPECT_FALSE(store.enabled());
  store.put("a", "r", {"x", ""});
  EXPECT_FALSE(store.find("a", "r"));
}

}  // namespace
}  // namespace deepinfer::serve
