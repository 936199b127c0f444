// Runs the lanes of plan.txt on the Arm Compute Library: checks the outputs, measures.
#include "bundle.hpp"
#include "lanes.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sched.h>
#include <stdexcept>

namespace {

const char *const usage =
    "usage: pipeline [FOLDER] [--verify] [--frames N] [--warmup N] [--repeats N] [--no-pin] [--no-sums]\n"
    "\n"
    "Runs all lanes of a bundle of dse export (FOLDER, default: the current folder) at the same time and\n"
    "prints the time of each stage, the latency and the throughput.\n"
    "\n"
    "  --verify     only compare the outputs of every lane with the reference\n"
    "  --frames N   frames of one repeat (default 50)\n"
    "  --warmup N   frames before the first repeat (default 10)\n"
    "  --repeats N  default 3\n"
    "  --no-pin     leave the choice of cores to the system\n"
    "  --no-sums    do not check SHA256SUMS first\n"
    "\n"
    "Example: pipeline . --frames 200\n";

struct Wish {
    std::string folder = ".";
    bool verify = false, pin = true, sums = true;
    long frames = 50, warmup = 10, repeats = 3;
};

struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

Wish read_arguments(int n, char **words) {
    Wish wish;
    bool named = false;
    for (int at = 1; at < n; ++at) {
        const std::string word = words[at];
        const auto number = [&](long low) {
            char *end = nullptr;
            const long value = at + 1 < n ? std::strtol(words[++at], &end, 10) : low - 1;
            if (end == nullptr || *end != '\0' || value < low || value > 1000000000L) {
                throw UsageError(word + " needs a number from " + std::to_string(low) + " on");
            }
            return value;
        };
        if (word == "--verify") wish.verify = true;
        else if (word == "--no-pin") wish.pin = false;
        else if (word == "--no-sums") wish.sums = false;
        else if (word == "--frames") wish.frames = number(1);
        else if (word == "--warmup") wish.warmup = number(0);
        else if (word == "--repeats") wish.repeats = number(1);
        else if (word == "--help") { std::cout << usage; std::exit(0); }
        else if (word.empty() || word[0] == '-' || named) throw UsageError("unknown argument '" + word + "'");
        else { wish.folder = word; named = true; }
    }
    return wish;
}

void check_cores(const Plan &plan) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
    std::string missing;
    for (const auto &lane : plan.lanes) {
        for (const StagePlan &stage : lane) {
            for (int core : stage.cores) {
                if (core >= CPU_SETSIZE || !CPU_ISSET(core, &mask)) {
                    missing += (missing.empty() ? "" : ", ") + std::to_string(core) + " (" + stage.name + ")";
                }
            }
        }
    }
    if (!missing.empty()) {
        throw std::runtime_error("this process may not use core " + missing +
                                 ": run it where these cores are, or with --no-pin");
    }
}

std::vector<Array> read_reference(const std::string &folder, const char *side, const std::vector<Port> &ports) {
    std::vector<Array> arrays;
    for (std::size_t number = 0; number < ports.size(); ++number) {
        const std::string path = folder + "/reference/" + side + "_" + std::to_string(number) + ".npy";
        arrays.push_back(read_npy(path));
        const Array &array = arrays.back();
        const std::size_t n_frames = array.shape.empty() ? 0 : array.shape[0];
        if (n_frames == 0 || array.values.size() != n_frames * ports[number].n_values ||
            n_frames != arrays.front().shape[0]) {
            throw std::runtime_error(path + ": does not fit tensor '" + ports[number].name + "' of plan.txt");
        }
    }
    return arrays;
}

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Prints the largest differences; returns whether all are allowed.
bool verify(Lanes &lanes, const Plan &plan, long n_reference) {
    const Numbers numbers = lanes.run(n_reference, Lanes::Deal::Each);
    bool good = true;
    for (std::size_t output = 0; output < plan.outputs.size(); ++output) {
        const bool within = numbers.worst[output] <= plan.tolerances[output];
        good = good && within;
        std::cout << "verify output " << output << " difference " << numbers.worst[output] << " allowed "
                  << plan.tolerances[output] << (within ? " ok" : " TOO LARGE") << " ("
                  << plan.outputs[output].name << ")\n";
    }
    return good;
}

void measure(Lanes &lanes, const Plan &plan, const Wish &wish) {
    if (wish.warmup > 0) lanes.run(wish.warmup, Lanes::Deal::Each);
    const Numbers alone = lanes.run(std::min(wish.frames, 10L), Lanes::Deal::OneAtATime);
    std::cout << "alone latency_ms " << median(alone.latency_ms) << "\n";
    std::vector<std::vector<double>> busy_ms;
    std::vector<double> latency_ms;
    for (long repeat = 0; repeat < wish.repeats; ++repeat) {
        const Numbers numbers = lanes.run(wish.frames, Lanes::Deal::Shared);
        std::cout << "repeat " << repeat << " throughput_hz " << double(numbers.n_frames) / numbers.seconds
                  << " latency_ms " << median(numbers.latency_ms) << "\n";
        busy_ms.resize(numbers.busy_ms.size());
        for (std::size_t stage = 0; stage < busy_ms.size(); ++stage) {
            const auto &more = numbers.busy_ms[stage];
            busy_ms[stage].insert(busy_ms[stage].end(), more.begin(), more.end());
        }
    }
    std::size_t number = 0;
    for (const auto &lane : plan.lanes) {
        for (const StagePlan &stage : lane) {
            std::cout << "stage " << stage.name << " busy_ms " << median(busy_ms[number]) << " frames "
                      << busy_ms[number].size() << "\n";
            ++number;
        }
    }
}

int run(const Wish &wish) {
    if (wish.sums) check_files(wish.folder);
    const Plan plan = read_plan(wish.folder);
    if (wish.pin) check_cores(plan);
    std::vector<Array> inputs = read_reference(wish.folder, "input", plan.inputs);
    const long n_reference = inputs.empty() ? 1 : long(inputs.front().shape[0]);
    Lanes lanes(plan, wish.folder, wish.pin, std::move(inputs),
                read_reference(wish.folder, "output", plan.outputs));
    const bool good = verify(lanes, plan, n_reference);
    for (const std::string &line : lanes.bindings()) std::cout << line << "\n";
    if (!wish.verify) measure(lanes, plan, wish);
    if (!good) std::cerr << "pipeline: the outputs differ from the reference by more than is allowed\n";
    return good ? 0 : 1;
}

}  // namespace

int main(int n, char **words) try {
    return run(read_arguments(n, words));
} catch (const UsageError &error) {
    std::cerr << "pipeline: " << error.what() << "\n" << usage;
    return 2;
} catch (const std::exception &error) {
    std::cerr << "pipeline: " << error.what() << "\n";
    return 1;
}
