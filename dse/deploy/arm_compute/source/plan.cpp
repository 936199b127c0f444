#include "plan.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace {

[[noreturn]] void fault(const std::string &what) { throw std::runtime_error(what); }

std::string unescape(const std::string &text) {
    if (text == "%") return "";
    std::string name;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] != '%') {
            name += text[at];
        } else if (at + 2 < text.size()) {
            name += char(std::stoi(text.substr(at + 1, 2), nullptr, 16));
            at += 2;
        } else {
            fault("a % without two digits");
        }
    }
    return name;
}

// The numbers of a text such as 1x224x224x3 or 4,5; "-" has none.
std::vector<std::size_t> numbers(const std::string &text, char separator) {
    std::vector<std::size_t> found;
    if (text == "-") return found;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, separator);) {
        if (part.empty() || part.find_first_not_of("0123456789") != std::string::npos || part.size() > 9) {
            fault("expected numbers separated by '" + std::string(1, separator) + "', got '" + text + "'");
        }
        found.push_back(std::stoul(part));
    }
    return found;
}

Port read_port(std::istream &fields) {
    Port port;
    std::string shape, name;
    std::size_t n_bytes = 0;
    fields >> port.key >> port.type >> shape >> n_bytes >> name;
    port.name = unescape(name);
    port.n_values = 1;
    for (std::size_t size : numbers(shape, 'x')) port.n_values *= size;
    if (port.type != "float32") fault("tensor '" + port.name + "' is " + port.type + ", expected float32");
    return port;
}

StagePlan read_stage(std::istream &fields) {
    StagePlan stage;
    std::string name, cores, cluster, file;
    fields >> name >> stage.threads >> cores >> cluster >> file;
    stage.name = unescape(name);
    stage.file = unescape(file);
    for (std::size_t core : numbers(cores, ',')) stage.cores.push_back(int(core));
    if (stage.threads == 0 || stage.cores.size() != stage.threads) {
        fault("stage '" + stage.name + "': expected as many cores as threads");
    }
    return stage;
}

void read_line(Plan &plan, const std::string &line) {
    std::istringstream fields(line);
    std::string word, rest;
    fields >> word;
    if (word == "mapping" || word == "model" || word == "stateful") {
        fields >> rest;
        if (word == "model") plan.model = unescape(rest);
        if (word == "stateful" && rest != "no") fault("models with state can not run here");
    } else if (word == "queue") {
        fields >> plan.queue;
    } else if (word == "input" || word == "output") {
        (word == "input" ? plan.inputs : plan.outputs).push_back(read_port(fields));
    } else if (word == "tolerance") {
        fields >> rest;
        plan.tolerances.push_back(std::strtod(rest.c_str(), nullptr));
    } else if (word == "lane") {
        plan.lanes.emplace_back();
    } else if (word == "stage" && !plan.lanes.empty()) {
        plan.lanes.back().push_back(read_stage(fields));
    } else if ((word == "takes" || word == "gives") && !plan.lanes.empty() && !plan.lanes.back().empty()) {
        StagePlan &stage = plan.lanes.back().back();
        (word == "takes" ? stage.takes : stage.gives).push_back(read_port(fields));
    } else {
        fault("unexpected '" + word + "'");
    }
    if (fields.fail()) fault("fields are missing");
}

}  // namespace

Plan read_plan(const std::string &path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line) || line != "tflite-dse plan 1") {
        fault(path + ": expected a plan of dse export ('tflite-dse plan 1')");
    }
    Plan plan;
    for (int number = 2; std::getline(file, line); ++number) {
        try {
            read_line(plan, line);
        } catch (const std::exception &error) {
            fault(path + ":" + std::to_string(number) + ": " + error.what());
        }
    }
    if (plan.lanes.empty() || plan.tolerances.size() != plan.outputs.size() || plan.queue == 0) {
        fault(path + ": expected lanes, a queue and a tolerance for each output (is the file cut short?)");
    }
    for (const auto &lane : plan.lanes) {
        if (lane.empty()) fault(path + ": a lane has no stage");
    }
    return plan;
}
