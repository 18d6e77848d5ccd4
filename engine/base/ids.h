// Strong ids and sizes in messages. Two ids of different kinds do not mix: StrongId<struct RequestTag> is not
// StrongId<struct SequenceTag>. Durations are std::chrono's or end in _ns; sizes end in _bytes.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace deepinfer {

template <class Tag, class Representation = std::int64_t>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Representation value) : value_(value) {}
  constexpr Representation value() const { return value_; }
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;

 private:
  Representation value_{};
};

inline constexpr std::uint64_t kKibibyte = std::uint64_t{1} << 10;
inline constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

// "812 B", "1.50 KiB", "3.2 GiB": three significant digits.
std::string bytes_text(std::uint64_t bytes);

}  // namespace deepinfer

template <class Tag, class Representation>
struct std::hash<deepinfer::StrongId<Tag, Representation>> {
  std::size_t operator()(const deepinfer::StrongId<Tag, Representation>& id) const {
    return std::hash<Representation>()(id.value());
  }
};
