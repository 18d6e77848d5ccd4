#include "support/served_program.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace deepinfer::test {
namespace {

namespace asio = boost::asio;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set: run this through ctest");
  return value;
}

// Up to the end of a line; empty at the end of the file.
std::string next_line(int file) {
  std::string line;
  for (char c = 0; ::read(file, &c, 1) == 1 && c != '\n';)
    line += c;
  return line;
}

}  // namespace

std::string get(std::uint16_t port, const std::string& path) {
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  boost::system::error_code code;
  socket.connect({asio::ip::address_v4::loopback(), port}, code);
  if (code) return {};
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
  asio::write(socket, asio::buffer(request), code);
  std::string answer;
  asio::read(socket, asio::dynamic_buffer(answer), code);
  const std::size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos || answer.find(" 200 ") > 12 ? std::string() : answer.substr(body + 4);
}

ServedProgram::ServedProgram(const std::vector<std::string>& options) {
  std::vector<std::string> words = {variable("DEEPINFER_TEST_PROGRAM"),
                                    "serve",
                                    "--model",
                                    variable("DEEPINFER_TEST_MODEL"),
                                    "--port",
                                    "0",
                                    "--served-model-name",
                                    "demo"};
  words.insert(words.end(), options.begin(), options.end());
  std::vector<char*> arguments;
  for (std::string& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw std::runtime_error("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, pipe[0]);
  const int failed = ::posix_spawn(&process_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  errors_ = pipe[0];
  if (failed != 0) throw std::runtime_error("cannot start " + words[0]);
  std::string line = next_line(errors_), refusal;  // ... http://127.0.0.1:PORT, ...
  for (; !line.empty() && line.find("127.0.0.1") == std::string::npos; line = next_line(errors_))
    refusal += line + " ";
  const std::size_t colon = line.empty() ? std::string::npos : line.find(':', line.find("127.0.0.1"));
  if (colon == std::string::npos) throw std::runtime_error("the server says: " + refusal);
  port_ = static_cast<std::uint16_t>(std::stoi(line.substr(colon + 1)));
  for (int i = 0; get(port_, "/ready").empty(); ++i) {
    // Minutes, for sanitized programs on busy machines.
    if (i > 6000 || !lives()) {
      stop();
      throw std::runtime_error("the server does not become ready");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

ServedProgram::~ServedProgram() {
  if (process_ > 0) stop();
  ::close(errors_);
}

bool ServedProgram::lives() const {
  siginfo_t ended{};
  return process_ > 0 &&
         ::waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

int ServedProgram::stop() {
  ::kill(process_, SIGTERM);
  return wait();
}

int ServedProgram::wait() {
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ServedProgram::messages() const {
  std::string text;
  for (char c = 0; ::read(errors_, &c, 1) == 1;)
    text += c;
  return text;
}

std::map<std::string, double> ServedProgram::metrics() const {
  std::map<std::string, double> samples;
  std::istringstream page(get(port_, "/metrics"));
  for (std::string line; std::getline(page, line);) {
    const std::size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
    samples[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return samples;
}

std::int64_t ServedProgram::peak_bytes() const {
  std::ifstream file("/proc/" + std::to_string(process_) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

}  // namespace deepinfer::test
