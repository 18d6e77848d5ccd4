// Things that clients may come back to, by id: bounded, for a time, each tenant's own. In memory, and wherever a mirror puts
// them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace deepinfer::serve {

struct StoreLimits {
  std::size_t entries = 10'000;                   // 0: nothing is stored
  std::size_t bytes = std::size_t{256} << 20;     // of all values together
  std::int64_t life_s = std::int64_t{24} * 3600;  // after which an entry is forgotten
};

// `Value` has bytes() const. Any thread. What is over the limits is forgotten, the oldest first, of the tenant that holds
// most: one tenant cannot push out what others have.
template <class Value>
class TenantStore {
 public:
  // `now_s`: seconds since 1970; the machine's clock unless given.
  explicit TenantStore(StoreLimits limits, std::function<std::int64_t()> now_s = {})
      : limits_(limits), now_s_(now_s ? std::move(now_s) : clock_seconds) {}

  bool enabled() const { return limits_.entries > 0; }

  // Is told of every entry that comes, changes or goes (then without a value), in this order. Set before the first use.
  using Mirror = std::function<void(const std::string& tenant, const std::string& id, const Value*,
                                    std::int64_t until_s)>;
  void set_mirror(Mirror mirror) { mirror_ = std::move(mirror); }

  // Takes the place of what has this id.
  void put(const std::string& tenant, const std::string& id, Value value) {
    restore(tenant, id, std::move(value), now_s_() + limits_.life_s);
  }
  // The same for one that has lived before: it is forgotten at `until_s`.
  void restore(const std::string& tenant, const std::string& id, Value value, std::int64_t until_s) {
    if (!enabled()) return;
    const std::lock_guard lock(mutex_);
    Shelf& shelf = shelves_[tenant];
    if (const auto old = shelf.by_id.find(id); old != shelf.by_id.end()) drop(shelf, old->second);
    shelf.tenant = tenant;
    shelf.entries.push_back({id, std::move(value), until_s});
    shelf.by_id[id] = std::prev(shelf.entries.end());
    add(shelf, size_of(shelf.entries.back()));
    ++count_;
    if (mirror_) mirror_(tenant, id, &shelf.entries.back().value, until_s);
    drop_old();
    drop_over();
  }

  // False: it has been forgotten or erased in the meantime, or never was.
  bool change(const std::string& tenant, const std::string& id, const std::function<void(Value&)>& edit) {
    const std::lock_guard lock(mutex_);
    Entry* const entry = locate(tenant, id);
    if (entry == nullptr) return false;
    Shelf& shelf = shelves_[tenant];
    remove(shelf, size_of(*entry));
    edit(entry->value);
    add(shelf, size_of(*entry));
    if (mirror_) mirror_(tenant, id, &entry->value, entry->until_s);
    drop_over();
    return true;
  }

  std::optional<Value> find(const std::string& tenant, const std::string& id) {
    const std::lock_guard lock(mutex_);
    const Entry* const entry = locate(tenant, id);
    return entry == nullptr ? std::nullopt : std::optional<Value>(entry->value);
  }

  bool erase(const std::string& tenant, const std::string& id) {
    const std::lock_guard lock(mutex_);
    if (locate(tenant, id) == nullptr) return false;
    const auto shelf = shelves_.find(tenant);
    drop(shelf->second, shelf->second.by_id.at(id));
    if (shelf->second.entries.empty()) shelves_.erase(shelf);
    return true;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  std::size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Entry {
    std::string id;
    Value value;
    std::int64_t until_s = 0;
  };
  using Entries = std::list<Entry>;
  struct Shelf {
    std::string tenant;
    Entries entries;  // oldest first
    std::unordered_map<std::string, typename Entries::iterator> by_id;
    std::size_t bytes = 0;
  };

  static std::int64_t clock_seconds() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(now).count();
  }
  static std::size_t size_of(const Entry& entry) { return entry.id.size() + entry.value.bytes(); }

  void add(Shelf& shelf, std::size_t size) {
    shelf.bytes += size;
    bytes_ += size;
  }
  void remove(Shelf& shelf, std::size_t size) {
    shelf.bytes -= size;
    bytes_ -= size;
  }

  Entry* locate(const std::string& tenant, const std::string& id) {
    drop_old();
    const auto shelf = shelves_.find(tenant);
    if (shelf == shelves_.end()) return nullptr;
    const auto entry = shelf->second.by_id.find(id);
    return entry == shelf->second.by_id.end() ? nullptr : &*entry->second;
  }

  void drop(Shelf& shelf, typename Entries::iterator entry) {
    remove(shelf, size_of(*entry));
    --count_;
    if (mirror_) mirror_(shelf.tenant, entry->id, nullptr, 0);
    shelf.by_id.erase(entry->id);
    shelf.entries.erase(entry);
  }

  // Those whose time is over.
  void drop_old() {
    const std::int64_t now = now_s_();
    for (auto shelf = shelves_.begin(); shelf != shelves_.end();) {
      while (!shelf->second.entries.empty() && shelf->second.entries.front().until_s <= now)
        drop(shelf->second, shelf->second.entries.begin());
      shelf = shelf->second.entries.empty() ? shelves_.erase(shelf) : std::next(shelf);
    }
  }

  // What is over the limits.
  void drop_over() {
    while (count_ > limits_.entries || bytes_ > limits_.bytes) {
      const bool by_bytes = bytes_ > limits_.bytes;
      const auto fullest =
          std::max_element(shelves_.begin(), shelves_.end(), [&](const auto& a, const auto& b) {
            return by_bytes ? a.second.bytes < b.second.bytes
                            : a.second.entries.size() < b.second.entries.size();
          });
      drop(fullest->second, fullest->second.entries.begin());
      if (fullest->second.entries.empty()) shelves_.erase(fullest);
    }
  }

  StoreLimits limits_;
  std::function<std::int64_t()> now_s_;
  Mirror mirror_;
  mutable std::mutex mutex_;
  std::map<std::string, Shelf> shelves_;  // none empty
  std::size_t count_ = 0, bytes_ = 0;
};

// A response of the Responses dialect. JSON texts: nothing reads them while they lie there.
struct StoredResponse {
  std::string response;  // the object
  std::string input;     // the list of its input items; those of the responses before it come first
  std::size_t bytes() const { return response.size() + input.size(); }
};
using ResponseStore = TenantStore<StoredResponse>;

}  // namespace deepinfer::serve
