// What steps run on: a compiled model, its state pools and what is known about them. Made by runtime::load, used
// by one Engine or one Scorer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "cache/sequence.h"

namespace deepinfer::runtime {

struct CoreInfo {
  std::string model;        // "v4.1", "v4"
  std::string fingerprint;  // of weights and configuration
  std::string precision;    // "f32", "bf16"
  std::string activations;  // "bf16", "fp8" (model::Activations)
  backend::Capabilities backend;
  int vocab = 0;  // rows of the head
  int hidden = 0;
  bool replay = false;             // the model has a decoder half that can run on fewer rows
  int cut_layer = -1;              // model::Config::cut_layer
  std::int64_t max_model_len = 0;  // most tokens of a sequence
  int snapshots = 0;               // of a prefix cache, that the memory plan has room for
  backend::StepLimits limits;      // what the executable was compiled for
};

// Members are destroyed last to first: the state before the executable, both before the device.
struct Core {
  CoreInfo info;
  std::shared_ptr<const void> keep;  // whatever the executable borrows from (the mapped checkpoint)
  std::shared_ptr<backend::Backend> device;
  std::unique_ptr<backend::Executable> executable;
  std::unique_ptr<cache::Store> store;
};

}  // namespace deepinfer::runtime
