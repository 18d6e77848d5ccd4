// What a step of a model with more layers takes, by arithmetic from two models that differ in their number alone.
#pragma once

namespace deepinfer::bench {

// Seconds of the same step with two numbers of layers. The further layers are taken to be like those that the second has beyond
// the first; whatever both have once (head, sampler, launches, what only some layers do) is the rest.
struct DepthTimes {
  int fewer_layers = 0, more_layers = 0;  // fewer < more
  double fewer_seconds = 0, more_seconds = 0;

  double layer() const { return (more_seconds - fewer_seconds) / (more_layers - fewer_layers); }
  double rest() const { return fewer_seconds - fewer_layers * layer(); }
  double at(int layers) const { return rest() + layers * layer(); }
};

}  // namespace deepinfer::bench
