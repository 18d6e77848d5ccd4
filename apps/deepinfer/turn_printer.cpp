#include "turn_printer.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

namespace deepinfer::app {

namespace {

volatile sig_atomic_t interrupt_seen = 0;
struct sigaction interrupt_before {};

void note_interrupt(int) {
  interrupt_seen = 1;
}

constexpr const char* kDim = "\033[2m";
constexpr const char* kColour = "\033[36m";
constexpr const char* kPlain = "\033[0m";

}  // namespace

TurnPrinter::TurnPrinter() : terminal_(isatty(STDOUT_FILENO) != 0) {}

void TurnPrinter::put(const std::string& text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  at_line_start_ = text.back() == '\n';
}

void TurnPrinter::enter(Part part) {
  if (part_ == part) return;
  if (terminal_ && part_ != Part::kNone) std::fputs(kPlain, stdout);
  if (part_ != Part::kNone && !at_line_start_) put("\n");
  part_ = part;
  if (terminal_ && part == Part::kReasoning) std::fputs(kDim, stdout);
  if (terminal_ && part == Part::kCall) std::fputs(kColour, stdout);
}

void TurnPrinter::delta(const text::ParserEvent& event) {
  switch (event.kind) {
    case text::ParserEvent::Kind::kReasoning:
      enter(Part::kReasoning);
      put(event.text);
      break;
    case text::ParserEvent::Kind::kContent:
      enter(Part::kContent);
      put(event.text);
      break;
    case text::ParserEvent::Kind::kCallStart:
      enter(Part::kNone);
      enter(Part::kCall);
      put("-> " + event.text + " ");
      break;
    case text::ParserEvent::Kind::kArguments:
      enter(Part::kCall);
      put(event.text);
      break;
  }
}

void TurnPrinter::tool_result(const std::string& name, const std::string& result) {
  enter(Part::kNone);
  if (!at_line_start_) put("\n");
  enter(Part::kCall);
  put("<- " + name + " " + result + "\n");
  enter(Part::kNone);
}

bool TurnPrinter::cancelled() {
  return InterruptScope::interrupted();
}

void TurnPrinter::finish() {
  enter(Part::kNone);
  if (!at_line_start_) put("\n");
}

InterruptScope::InterruptScope() {
  interrupt_seen = 0;
  struct sigaction action {};
  action.sa_handler = note_interrupt;
  sigaction(SIGINT, &action, &interrupt_before);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &interrupt_before, nullptr);
}

bool InterruptScope::interrupted() {
  return interrupt_seen != 0;
}

}  // namespace deepinfer::app
