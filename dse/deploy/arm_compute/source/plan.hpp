// plan.txt: which stage runs on which cores, and what it takes and gives.
#pragma once

#include <string>
#include <vector>

struct Port {
    int key = 0;
    std::string type;
    std::string name;
    std::size_t n_values = 0;
};

struct StagePlan {
    std::string name;
    std::string file;
    unsigned threads = 1;
    std::vector<int> cores;
    std::vector<Port> takes, gives;
};

struct Plan {
    std::string model;
    std::size_t queue = 2;
    std::vector<Port> inputs, outputs;
    std::vector<double> tolerances;
    std::vector<std::vector<StagePlan>> lanes;
};

// Throws std::runtime_error with file and line.
Plan read_plan(const std::string &path);
