// What a bundle says: which stage runs on which cores, and what it takes and gives.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

struct Port {
    int key = 0;
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
    std::size_t queue = 2;
    std::vector<Port> inputs, outputs;
    std::vector<double> tolerances;
    std::vector<std::vector<StagePlan>> lanes;
};

// Throws std::runtime_error that names every file which is missing or was changed.
void check_files(const std::string &folder);

// Reads plan.txt; throws std::runtime_error with the line that is damaged.
Plan read_plan(const std::string &folder);
