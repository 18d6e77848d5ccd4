// The real program serving the demo model in a process of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deepinfer::test {

class ServedProgram {
 public:
  // Starts it on a free port and waits until it is ready; throws std::runtime_error when it does not come up.
  explicit ServedProgram(const std::vector<std::string>& options);
  ~ServedProgram();
  ServedProgram(const ServedProgram&) = delete;
  ServedProgram& operator=(const ServedProgram&) = delete;

  std::uint16_t port() const { return port_; }
  bool lives() const;
  // SIGTERM; the exit code.
  int stop();
  // Waits until it has ended by itself; the exit code, or 128 and the signal that ended it.
  int wait();
  // What it wrote to standard error since it listens. Only when it has ended.
  std::string messages() const;
  // The samples of /metrics, by name and labels as they stand there.
  std::map<std::string, double> metrics() const;
  // The most memory that it has had so far.
  std::int64_t peak_bytes() const;

 private:
  pid_t process_ = -1;
  std::uint16_t port_ = 0;
  int errors_ = -1;  // its standard error
};

// Body of an answer to GET, read to the end of the connection; empty if there is none.
std::string get(std::uint16_t port, const std::string& path);

}  // namespace deepinfer::test
