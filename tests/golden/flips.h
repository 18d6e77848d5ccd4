// Explaining a difference between two correct f32 implementations (README41.md, gate 2): it may only start at a
// stored code that lies on a rounding boundary.
#pragma once

#include <string>

#include "backend/backend.h"
#include "graph/graph.h"

namespace deepinfer::test {

struct Flip {
  bool explained = false;
  std::string text;  // where the first difference is and what it is
};

// Compares the seams of the last step of two executables of the same graph in the order of the forward pass. Explained
// means: the first seam that differs by more than float noise is a stored one (window, rows, keys), every seam before it
// agrees, and at most `codes` of its values differ, each by about one code.
Flip first_flip(const graph::Graph& graph, const backend::Executable& a, const backend::Executable& b,
                int codes);

}  // namespace deepinfer::test
