// deepinfer tokenize, detokenize: text on standard input to ids and back.
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "service/turn.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace deepinfer::app {

namespace {

struct Options {
  ModelChoice model;
  bool special = false;
  bool json = false;
};

Result<text::Tokenizer> open_tokenizer(const ModelChoice& model) {
  DI_ASSIGN(const auto directory, model.directory());
  return service::load_tokenizer(directory);
}

int tokenize(const Options& options) {
  const auto tokenizer = open_tokenizer(options.model);
  if (!tokenizer) return fail(tokenizer.error());
  const std::string input = read_standard_input();
  const auto ids = options.special ? tokenizer->encode_with_specials(input) : tokenizer->encode(input);
  std::string output;
  if (options.json) {
    output = nlohmann::json{{"ids", ids}, {"count", ids.size()}}.dump() + "\n";
  } else {
    for (const auto id : ids)
      output += (output.empty() ? "" : " ") + std::to_string(id);
    output += "\n";
  }
  const auto written = write_output(output);
  return written ? kDone : fail(written.error());
}

// Ids in any of the forms that tokenize prints: "1 2 3", "[1, 2, 3]", {"ids": [...]}.
Result<std::vector<std::int32_t>> ids_from_input(std::string input) {
  const auto first = input.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return std::vector<std::int32_t>{};
  if (input[first] == '[' || input[first] == '{') {
    const nlohmann::json json = nlohmann::json::parse(input, nullptr, false);
    const nlohmann::json list = json.is_object() && json.contains("ids") ? json["ids"] : json;
    if (!list.is_array()) {
      return make_error(ErrorKind::kInvalidArgument,
                        "cannot read token ids from standard input: no list of integers",
                        "give 1 2 3, [1, 2, 3] or {\"ids\": [1, 2, 3]}");
    }
    input = list.dump();
    input = input.substr(1, input.size() - 2);
  }
  std::string separated;
  for (const char byte : input) {
    const bool space = byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r' || byte == ',';
    if (!space) {
      separated += byte;
    } else if (!separated.empty() && separated.back() != ',') {
      separated += ',';
    }
  }
  if (!separated.empty() && separated.back() == ',') separated.pop_back();
  auto ids = parse_ids(separated);
  if (!ids) return within(std::move(ids).error(), "standard input");
  return ids;
}

int detokenize(const Options& options) {
  const auto tokenizer = open_tokenizer(options.model);
  if (!tokenizer) return fail(tokenizer.error());
  const auto ids = ids_from_input(read_standard_input());
  if (!ids) return fail(ids.error());
  for (std::size_t i = 0; i < ids->size(); ++i) {
    if (!tokenizer->has_entry((*ids)[i])) {
      return fail(make_error(ErrorKind::kInvalidArgument,
                             "cannot decode id " + std::to_string((*ids)[i]) + " at index " +
                                 std::to_string(i) + ": the tokenizer has ids 0 to " +
                                 std::to_string(tokenizer->vocabulary_size() - 1) +
                                 " and none of that number"));
    }
  }
  const std::string decoded = text::decode(*tokenizer, *ids);
  const auto written = write_output(options.json ? nlohmann::json{{"text", decoded}}.dump() + "\n" : decoded);
  return written ? kDone : fail(written.error());
}

}  // namespace

void add_tokenize(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("tokenize", "Text on standard input to token ids");
  options->model.declare(*command);
  command->add_flag("--special", options->special,
                    "Recognise the spellings of special tokens (default: they are plain text)");
  command->add_flag("--json", options->json, "Print {\"ids\": [...], \"count\": N}");
  command->callback([&context, options] { context.action = [options] { return tokenize(*options); }; });
}

void add_detokenize(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("detokenize", "Token ids on standard input to text");
  options->model.declare(*command);
  command->add_flag("--special", options->special,
                    "Accepted for symmetry: special ids always decode to their spelling");
  command->add_flag("--json", options->json, "Print {\"text\": ...}");
  command->callback([&context, options] { context.action = [options] { return detokenize(*options); }; });
}

}  // namespace deepinfer::app
