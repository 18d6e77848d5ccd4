#include "tool_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <vector>

extern char** environ;

namespace deepinfer::app {

namespace {

// Both ends of a pipe, closed at the end.
struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() { open_ = pipe2(ends.data(), O_CLOEXEC) == 0; }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t index) {
    if (ends[index] >= 0) ::close(ends[index]);
    ends[index] = -1;
  }
  bool open() const { return open_; }

 private:
  bool open_ = false;
};

// Writes `input` and reads the output at the same time, so that neither side waits for a full pipe.
std::string exchange(Pipe& to, Pipe& from, const std::string& input, std::size_t limit) {
  fcntl(to.ends[1], F_SETFL, O_NONBLOCK);
  std::string output;
  std::size_t sent = 0;
  if (input.empty()) to.close_end(1);
  for (;;) {
    std::array<pollfd, 2> waits{{{from.ends[0], POLLIN, 0}, {to.ends[1], POLLOUT, 0}}};
    if (poll(waits.data(), to.ends[1] >= 0 ? 2 : 1, -1) < 0) {
      if (errno == EINTR) continue;
      return output;
    }
    if (to.ends[1] >= 0 && waits[1].revents != 0) {
      const ssize_t count = write(to.ends[1], input.data() + sent, input.size() - sent);
      if (count > 0) sent += static_cast<std::size_t>(count);
      if ((count < 0 && errno != EAGAIN && errno != EINTR) || sent == input.size()) to.close_end(1);
    }
    if (waits[0].revents != 0) {
      std::array<char, 4096> buffer{};
      const ssize_t count = read(from.ends[0], buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return output;
      if (output.size() < limit) output.append(buffer.data(), static_cast<std::size_t>(count));
    }
  }
}

}  // namespace

Result<std::string> run_tool(const std::string& command, const std::string& name,
                             const std::string& arguments, std::size_t limit) {
  std::vector<std::string> words;
  std::istringstream split(command);
  for (std::string word; split >> word;)
    words.push_back(word);
  if (words.empty()) return make_error(ErrorKind::kInvalidArgument, "--tool-command is empty");
  words.push_back(name);
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);

  Pipe to;
  Pipe from;
  if (!to.open() || !from.open()) {
    return make_error(ErrorKind::kIo, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to.ends[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from.ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    return make_error(ErrorKind::kNotFound,
                      "cannot run tool command " + words[0] + ": " + std::strerror(failed),
                      "give the path of a program with --tool-command");
  }
  to.close_end(0);
  from.close_end(1);
  // A tool that stops reading must not end us.
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  std::string output = exchange(to, from, arguments, limit);
  sigaction(SIGPIPE, &before, nullptr);
  from.close_end(0);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return make_error(ErrorKind::kInternal, "tool command " + words[0] + " failed for " + name +
                                                " with status " + std::to_string(code));
  }
  if (output.size() > limit) output.resize(limit);
  while (!output.empty() && output.back() == '\n')
    output.pop_back();
  return output;
}

}  // namespace deepinfer::app
