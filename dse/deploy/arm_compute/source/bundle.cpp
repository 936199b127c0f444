// The readers of bundles are the C runner's: plan.c and files.c.
#include "bundle.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

extern "C" {
#include "files.h"
#include "plan.h"

// They ask for the sizes of types; this program knows one.
size_t lrt_type_bytes(const char *type) { return std::strcmp(type, "float32") == 0 ? sizeof(float) : 0; }
}

namespace {

std::vector<Port> ports(const plan_ports &read) {
    std::vector<Port> made;
    for (int at = 0; at < read.n; ++at) {
        const plan_port &port = read.items[at];
        made.push_back({int(port.key), port.tensor.name, port.tensor.n_bytes / sizeof(float)});
    }
    return made;
}

StagePlan stage_plan(const plan_stage &read) {
    StagePlan stage;
    stage.name = read.name;
    stage.file = read.file;
    stage.threads = unsigned(read.threads);
    stage.cores.assign(read.cores, read.cores + read.n_cores);
    stage.takes = ports(read.takes);
    stage.gives = ports(read.gives);
    if (stage.cores.size() != stage.threads) {
        throw std::runtime_error("plan.txt: stage '" + stage.name + "' needs as many cores as threads");
    }
    return stage;
}

}  // namespace

void check_files(const std::string &folder) {
    char error[4096] = "";
    if (check_sums(folder.c_str(), 1, error, sizeof error) != 0) throw std::runtime_error(error);
}

Plan read_plan(const std::string &folder) {
    char error[4096] = "";
    const std::unique_ptr<char, decltype(&std::free)> text(
        read_file((folder + "/plan.txt").c_str(), error, sizeof error), std::free);
    if (!text) throw std::runtime_error(error);
    const std::unique_ptr<plan, decltype(&plan_free)> read(plan_read(text.get(), error, sizeof error), plan_free);
    if (!read) throw std::runtime_error(folder + "/" + error);
    char sum[65] = "";
    if (sha256_file((folder + "/mapping.yaml").c_str(), sum) != 0 || std::strcmp(sum, read->mapping) != 0) {
        throw std::runtime_error(folder + ": plan.txt does not belong to this mapping.yaml: export the bundle again");
    }
    if (read->stateful) throw std::runtime_error(folder + ": models with state can not run here");
    Plan made;
    made.queue = std::size_t(read->queue_depth);
    made.inputs = ports(read->inputs);
    made.outputs = ports(read->outputs);
    made.tolerances.assign(read->tolerances, read->tolerances + read->n_tolerances);
    for (int lane = 0; lane < read->n_lanes; ++lane) {
        made.lanes.emplace_back();
        for (int stage = 0; stage < read->lanes[lane].n_stages; ++stage) {
            made.lanes.back().push_back(stage_plan(read->lanes[lane].stages[stage]));
        }
    }
    return made;
}
