// The processors this process may use, and the floating-point modes that every computing thread runs with.
#pragma once

#include <vector>

namespace deepinfer {

// Logical processors of the affinity mask, those of different cores first, then their siblings.
std::vector<int> allowed_processors();
// How many threads can run at once: the affinity mask, and the CPU quota of the container if it has one. At least 1.
int usable_threads();
// Binds the calling thread to one logical processor; false if the system refuses.
bool pin_this_thread(int processor);

// Round to nearest, subnormals kept, exceptions masked, for as long as the object lives: a host program may have set
// other modes on its threads, and results must not depend on them.
class StandardFloatModes {
 public:
  StandardFloatModes();
  ~StandardFloatModes();
  StandardFloatModes(const StandardFloatModes&) = delete;
  StandardFloatModes& operator=(const StandardFloatModes&) = delete;

 private:
  unsigned saved_;
};

}  // namespace deepinfer
