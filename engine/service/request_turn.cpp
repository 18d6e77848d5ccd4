#include "service/request_turn.h"

namespace deepinfer::service {

TurnRequest turn_request(const dialects::Request& request) {
  const dialects::SamplingOptions& options = request.sampling;
  TurnRequest turn;
  turn.conversation = request.conversation;
  turn.max_tokens = options.max_tokens;
  turn.stops = request.stops;
  turn.stop_ids = options.stop_token_ids;
  turn.ignore_eos = options.ignore_eos;
  turn.sampling.min_tokens = options.min_tokens;
  turn.sampling.temperature = options.temperature;
  turn.sampling.top_p = options.top_p;
  turn.sampling.top_k = static_cast<int>(options.top_k.value_or(0));
  turn.sampling.min_p = options.min_p;
  turn.sampling.frequency_penalty = options.frequency_penalty;
  turn.sampling.presence_penalty = options.presence_penalty;
  turn.sampling.repetition_penalty = options.repetition_penalty;
  turn.sampling.seed = options.seed;
  turn.sampling.logprobs = options.logprobs;
  turn.sampling.top_logprobs = static_cast<int>(options.top_logprobs.value_or(0));
  for (const auto& [id, bias] : options.logit_bias) {
    turn.sampling.logit_bias.emplace_back(id, static_cast<float>(bias));
  }
  return turn;
}

}  // namespace deepinfer::service
