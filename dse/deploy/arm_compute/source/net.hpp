// What the generated graphs are built with: inputs, outputs and constants of a stage.
#pragma once

#include "arm_compute/core/Helpers.h"
#include "arm_compute/core/ITensor.h"
#include "arm_compute/core/Window.h"
#include "arm_compute/graph.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

// An array of a .npy file: 32-bit floats, row by row.
struct Array {
    std::vector<std::size_t> shape;
    std::vector<float> values;
};

Array read_npy(const std::string &path);

// A frame on its way through a lane: where the values of each tensor are.
struct Frame {
    long number = 0;
    std::int64_t started_ns = 0;
    std::vector<const float *> values;    // by slot
    std::vector<std::vector<float>> own;  // by slot; inputs of the model have none
};

// Which slot of a frame holds a tensor, by the tensor's key in plan.txt.
using Slots = std::map<int, std::size_t>;

// The library stores dimensions the other way round, the fastest first.  With channels last
// (DataLayout::NHWC), its order in memory is that of the .tflite file, so nothing is ever permuted.
class Net {
public:
    using SubStream = arm_compute::graph::frontend::SubStream;

    Net(arm_compute::graph::frontend::Stream &stream, std::string weights, const Slots &slots, Frame *const &frame);

    // An input of the stage.
    SubStream input(int key, const arm_compute::TensorShape &shape);
    // A constant as a value of its own.
    SubStream value(const char *file, const arm_compute::TensorShape &shape);
    // A constant that belongs to a layer.
    arm_compute::graph::ITensorAccessorUPtr constant(const char *file) const;
    // An output of the stage.
    void output(int key, SubStream value);

private:
    arm_compute::graph::frontend::Stream &stream_;
    std::string weights_;
    const Slots &slots_;
    Frame *const &frame_;
};

// A stage's graph and the stage file that it was made from.
struct StageGraph {
    const char *file;
    void (*build)(Net &);
};

// Made by dse export, in graphs.cpp.
extern const std::vector<StageGraph> graphs;
