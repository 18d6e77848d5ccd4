// deepinfer chat: a conversation in the terminal.
#include <editline/readline.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "command.h"
#include "turn_options.h"
#include "turn_printer.h"

namespace deepinfer::app {

namespace {

using text::JsonValue;

constexpr const char* kHelp =
    "  /help            this text\n"
    "  /new             forget the conversation\n"
    "  /undo            take back the last question and its answer\n"
    "  /thinking LEVEL  off, low, high, max, xhigh or 1..100\n"
    "  /quit            leave (also Ctrl-D)\n"
    "  Ctrl-C           stop the answer that is being written\n";

// Lines from a terminal with editing and a history file, or plainly from a pipe.
class LineReader {
 public:
  LineReader() : terminal_(isatty(STDIN_FILENO) != 0) {
    if (!terminal_) return;
    using_history();
    stifle_history(kHistoryLines);
    if (const char* home = std::getenv("HOME"); home != nullptr)
      history_ = std::string(home) + "/.deepinfer_history";
    if (!history_.empty()) read_history(history_.c_str());
  }
  ~LineReader() {
    if (terminal_ && !history_.empty()) write_history(history_.c_str());
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // False at the end of input.
  bool read(std::string& line) {
    if (!terminal_) return static_cast<bool>(std::getline(std::cin, line));
    char* text = readline("> ");
    if (text == nullptr) return false;
    line = text;
    if (!line.empty()) add_history(text);
    std::free(text);
    return true;
  }

 private:
  static constexpr int kHistoryLines = 1000;
  bool terminal_;
  std::string history_;
};

struct Options {
  TurnChoice turn;
};

class Chat {
 public:
  Chat(TurnChoice choice, service::Service& service) : choice_(std::move(choice)), service_(service) {}

  Result<void> begin() {
    conversation_ = {};
    if (!choice_.system.empty()) {
      conversation_.messages.push_back(text::Message::of_text(text::Role::kSystem, choice_.system));
    }
    return {};
  }

  // False to leave.
  Result<bool> line(const std::string& line) {
    if (line.empty()) return true;
    if (line[0] == '/') return command(line);
    return answer(line);
  }

 private:
  Result<bool> command(const std::string& line) {
    const std::string word = line.substr(0, line.find(' '));
    const std::string rest = line.size() > word.size() ? line.substr(word.size() + 1) : std::string();
    if (word == "/quit" || word == "/exit") return false;
    if (word == "/new") {
      DI_TRY(begin());
    } else if (word == "/undo") {
      auto& messages = conversation_.messages;
      while (!messages.empty() && messages.back().role != text::Role::kUser)
        messages.pop_back();
      if (!messages.empty()) messages.pop_back();
    } else if (word == "/thinking") {
      const std::string before = std::exchange(choice_.thinking, rest);
      const auto valid = choice_.body(JsonValue::object(), JsonValue::array());
      if (!valid) {
        choice_.thinking = before;
        std::fprintf(stderr, "%s\n", valid.error().message().c_str());
      }
    } else {
      if (word != "/help") std::fprintf(stderr, "unknown command %s\n", word.c_str());
      std::fputs(kHelp, stderr);
    }
    return true;
  }

  Result<bool> answer(const std::string& line) {
    // The options are read as a request of this one message; the conversation so far then takes its place.
    DI_ASSIGN(const JsonValue body,
              choice_.body(JsonValue::object(),
                           JsonValue::array({JsonValue::object({{"role", "user"}, {"content", line}})})));
    DI_ASSIGN(auto request, choice_.request(body, service_));
    auto messages = conversation_.messages;
    messages.push_back(text::Message::of_text(text::Role::kUser, line));
    request.conversation.messages = std::move(messages);
    InterruptScope interrupts;
    TurnPrinter printer;
    auto exchange = converse(service_, request, choice_.tool_command, printer);
    printer.finish();
    if (!exchange) {
      // A question that cannot be answered is not kept; the chat goes on.
      std::fprintf(stderr, "deepinfer: %s\n", exchange.error().message().c_str());
      return true;
    }
    conversation_ = std::move(request.conversation);
    return true;
  }

  TurnChoice choice_;
  service::Service& service_;
  text::Conversation conversation_;
};

Result<void> chat(const Options& options) {
  DI_ASSIGN(auto service, options.turn.open_service());
  Chat chat(options.turn, *service);
  DI_TRY(chat.begin());
  LineReader lines;
  if (isatty(STDIN_FILENO) != 0) std::fputs("/help lists the commands, Ctrl-D leaves\n", stderr);
  std::string line;
  while (lines.read(line)) {
    DI_ASSIGN(const bool go_on, chat.line(line));
    if (!go_on) break;
  }
  return {};
}

}  // namespace

void add_chat(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("chat", "Talk with the model in the terminal");
  options->turn.declare(*command);
  command->callback([&context, options] {
    context.action = [options] {
      const auto done = chat(*options);
      return done ? kDone : fail(done.error());
    };
  });
}

}  // namespace deepinfer::app
