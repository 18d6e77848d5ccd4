// What rotates a vector (attention.md 3.4).
#pragma once

namespace deepinfer::backend::cuda {

struct Angle {
  float sine, cosine;
};

struct Rotation {
  const Angle* angles = nullptr;       // [T, pairs]; rows of tokens
  const float* frequencies = nullptr;  // [pairs]; rows of groups rotate at ratio * index
  int pairs = 0;
  bool inverse = false;
};

}  // namespace deepinfer::backend::cuda
