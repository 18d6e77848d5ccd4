// Shows an exchange on a terminal or in a file as it comes: reasoning, answer, tool calls and their results.
#pragma once

#include <string>

#include "turn_options.h"

namespace deepinfer::app {

class TurnPrinter final : public TurnWatcher {
 public:
  TurnPrinter();
  void delta(const text::ParserEvent& event) override;
  void tool_result(const std::string& name, const std::string& result) override;
  bool cancelled() override;
  // Ends the line that is open.
  void finish();

 private:
  enum class Part { kNone, kReasoning, kContent, kCall };
  void enter(Part part);
  void put(const std::string& text);

  bool terminal_;
  Part part_ = Part::kNone;
  bool at_line_start_ = true;
};

// Ctrl-C while an answer comes: the first one stops the answer. Restores the old handling at the end.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  static bool interrupted();
};

}  // namespace deepinfer::app
