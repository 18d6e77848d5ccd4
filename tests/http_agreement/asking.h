// Questions asked of a running program, and what it says to them alone and cold.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "http_agreement/answer.h"
#include "http_agreement/catalogue.h"
#include "support/served_program.h"

namespace deepinfer::http_agreement {

struct Way {
  bool stream = false;
  std::string key;
};

Answer ask(Connection& connection, const Question& question, const Way& way);
// What a step of a chain asks, whose answers so far are `before`: text, or items.
text::JsonValue input_of(const text::JsonValue& step, const std::vector<Answer>& before);
// The next response of a chain.
Answer ask_step(Connection& connection, const text::JsonValue& step, const std::vector<Answer>& before,
                const Way& way);
// The whole chain over one connection.
std::vector<Answer> ask_chain(Connection& connection, const Chain& chain, const Way& way);

// Each tenant has two keys.
inline constexpr int kTenants = 400;
std::string patient_key(int tenant);
std::string urgent_key(int tenant);
// A server whose tenants those are. A place has `blocks` blocks of 128 tokens.
test::ServedProgram serve(const std::string& mode, const std::vector<std::string>& more, int blocks = 8);

// A number from the environment.
int setting(const char* variable, int absent);

// Samples of a metric over all its labels.
double sum_of(const test::ServedProgram& program, const std::string& metric);
double preemptions(const test::ServedProgram& program);
double hits(const test::ServedProgram& program);

// What is said alone, whole, in exact mode without a prefix cache: what everything else is compared with.
struct Reference {
  Catalogue catalogue;
  std::map<std::string, Answer> answers;              // by question
  std::map<std::string, std::vector<Answer>> chains;  // by chain
};
const Reference& reference();

}  // namespace deepinfer::http_agreement
