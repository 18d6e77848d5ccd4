// Explaining a difference between two correct f32 implementations (README41.md, gate 2): it may only start at a
// stored code that lies on a rounding boundary.
#pragma once

#include <string>

#include "backend/backend.h"
#include "graph/graph.h"

namespace deepinfer::test {

struct Flip {
  bool explained = false;
  std::string text;  // the flipped codes, and the first value behind them
};

// Compares the seams of the last step of two executables of the same graph in the order of the forward pass. Explained
// means: before the first value that differs by more than float noise, between one and `codes` stored values (window,
// rows, keys) differ, each by about one code, and nothing else.
Flip first_flip(const graph::Graph& graph, const backend::Executable& a, const backend::Executable& b,
                int codes);

}  // namespace deepinfer::test
