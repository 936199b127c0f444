#include "lanes.hpp"

#include "arm_compute/runtime/CPP/CPPScheduler.h"
#include "arm_compute/runtime/Scheduler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <dirent.h>
#include <sched.h>
#include <set>
#include <stdexcept>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

using namespace arm_compute;

namespace {

std::int64_t now_ns() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

std::set<int> thread_ids() {
    std::set<int> found;
    if (DIR *folder = opendir("/proc/self/task")) {
        while (const dirent *entry = readdir(folder)) {
            if (entry->d_name[0] != '.') found.insert(std::atoi(entry->d_name));
        }
        closedir(folder);
    }
    return found;
}

std::string allowed_cores(int thread) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (sched_getaffinity(thread, sizeof mask, &mask) != 0) return "?";
    std::string text;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &mask)) text += (text.empty() ? "" : ",") + std::to_string(core);
    }
    return text;
}

// The library asks one scheduler for threads, the same from everywhere.  This one passes each request
// on to the pool of the stage that asks: a stage is a thread, and it owns a pool on its own cores.
class PoolOfThisThread final : public IScheduler {
public:
    static thread_local IScheduler *pool;

    void set_num_threads(unsigned int n) override { own().set_num_threads(n); }
    unsigned int num_threads() const override { return own().num_threads(); }
    void schedule(ICPPKernel *kernel, const Hints &hints) override { own().schedule(kernel, hints); }
    void schedule_op(ICPPKernel *kernel, const Hints &hints, ITensorPack &tensors) override {
        own().schedule_op(kernel, hints, tensors);
    }
    void run_tagged_workloads(std::vector<Workload> &workloads, const char *tag) override {
        own().run_tagged_workloads(workloads, tag);
    }

protected:
    void run_workloads(std::vector<Workload> &workloads) override {
        own().run_tagged_workloads(workloads, nullptr);
    }

private:
    static IScheduler &own() {
        if (pool == nullptr) throw std::logic_error("a thread that is no stage asked for threads");
        return *pool;
    }
};

thread_local IScheduler *PoolOfThisThread::pool = nullptr;

}  // namespace

void Queue::give(Frame *frame) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || frames_.size() < room_; });
    frames_.push_back(frame);
    changed_.notify_all();
}

Frame *Queue::take() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !frames_.empty(); });
    if (frames_.empty()) return nullptr;
    Frame *frame = frames_.front();
    frames_.pop_front();
    changed_.notify_all();
    return frame;
}

void Queue::close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
}

struct Lanes::Stage {
    const StagePlan *plan = nullptr;
    const StageGraph *graph = nullptr;
    std::unique_ptr<Queue> in;  // the first stage has none
    std::vector<double> busy_ms;
    std::string binding;
    std::thread thread;
};

struct Lanes::Lane {
    explicit Lane(std::size_t n_frames) : frames(n_frames), free(n_frames) {}
    std::vector<Frame> frames;
    Queue free;
    std::vector<Stage> stages;
    long left = 0;  // frames to be begun, when each lane has its own
    long number = 0;
};

Lanes::Lanes(const Plan &plan, const std::string &folder, bool pin, std::vector<Array> inputs,
             std::vector<Array> outputs)
    : folder_(folder), pin_(pin), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
    n_reference_ = inputs_.empty() ? 1 : inputs_.front().shape.at(0);
    std::vector<std::size_t> sizes;
    const auto add = [&](const Port &port, std::size_t size) {
        const auto added = slots_.emplace(port.key, sizes.size());
        if (added.second) sizes.push_back(0);
        std::size_t &known = sizes[added.first->second];
        known = std::max(known, size);
    };
    for (const Port &port : plan.inputs) add(port, 0);
    for (const auto &lane : plan.lanes) {
        for (const StagePlan &stage : lane) {
            for (const Port &port : stage.gives) add(port, port.n_values);
        }
    }
    for (const Port &port : plan.outputs) output_slots_.push_back(slots_.at(port.key));
    numbers_.worst.assign(plan.outputs.size(), 0.0);

    Scheduler::set(std::make_shared<PoolOfThisThread>());
    std::size_t n_stages = 0;
    for (const auto &planned : plan.lanes) {
        lanes_.push_back(std::make_unique<Lane>(planned.size() * (plan.queue + 1)));
        Lane &lane = *lanes_.back();
        for (Frame &frame : lane.frames) {
            frame.own.resize(sizes.size());
            frame.values.resize(sizes.size());
            for (std::size_t slot = 0; slot < sizes.size(); ++slot) {
                frame.own[slot].resize(sizes[slot]);
                frame.values[slot] = frame.own[slot].data();
            }
            lane.free.give(&frame);
        }
        lane.stages.resize(planned.size());
        for (std::size_t number = 0; number < planned.size(); ++number) {
            Stage &stage = lane.stages[number];
            stage.plan = &planned[number];
            const auto found = std::find_if(graphs.begin(), graphs.end(), [&](const StageGraph &graph) {
                return stage.plan->file == graph.file;
            });
            if (found == graphs.end()) {
                throw std::runtime_error("stage '" + stage.plan->name + "': this program has no graph for " +
                                         stage.plan->file + "; export again");
            }
            stage.graph = &*found;
            if (number > 0) stage.in = std::make_unique<Queue>(plan.queue);
            ++n_stages;
        }
    }
    // One after the other: threads that appear meanwhile belong to the stage that is being built.
    std::size_t n_started = 0;
    for (auto &lane : lanes_) {
        for (std::size_t number = 0; number < lane->stages.size(); ++number) {
            lane->stages[number].thread = std::thread([this, &lane, number] { work(*lane, number); });
            ++n_started;
            std::unique_lock<std::mutex> lock(mutex_);
            changed_.wait(lock, [&] { return n_ready_ == n_started || !failure_.empty(); });
        }
    }
}

Lanes::~Lanes() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    for (auto &lane : lanes_) {
        lane->free.close();
        for (Stage &stage : lane->stages) {
            if (stage.in) stage.in->close();
        }
    }
    for (auto &lane : lanes_) {
        for (Stage &stage : lane->stages) {
            if (stage.thread.joinable()) stage.thread.join();
        }
    }
}

void Lanes::work(Lane &lane, std::size_t number) try {
    Stage &stage = lane.stages[number];
    const std::set<int> before = thread_ids();
    const int self = int(syscall(SYS_gettid));
    CPPScheduler pool;
    if (pin_) {
        const std::vector<int> cores = stage.plan->cores;
        // Thread 0 of the pool is the stage's own thread.
        pool.set_num_threads_with_affinity(stage.plan->threads,
                                           [cores](int thread, int) { return cores.at(std::size_t(thread)); });
    } else {
        pool.set_num_threads(stage.plan->threads);
    }
    PoolOfThisThread::pool = &pool;
    Frame *frame = nullptr;
    graph::frontend::Stream stream(0, stage.plan->name);
    Net net(stream, folder_ + "/weights", slots_, frame);
    stage.graph->build(net);
    stream.finalize(graph::Target::NEON, graph::GraphConfig());
    stage.binding = "stage " + stage.plan->name + " threads on cores " + allowed_cores(self);
    for (int thread : thread_ids()) {
        if (before.count(thread) == 0) stage.binding += " | " + allowed_cores(thread);
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ++n_ready_;
        changed_.notify_all();
    }
    const bool last = number + 1 == lane.stages.size();
    while ((frame = number == 0 ? next_frame(lane) : stage.in->take()) != nullptr) {
        const std::int64_t start_ns = now_ns();
        if (number == 0) frame->started_ns = start_ns;
        stream.run();
        stage.busy_ms.push_back(double(now_ns() - start_ns) / 1e6);
        if (last) {
            finish(lane, frame);
        } else {
            lane.stages[number + 1].in->give(frame);
        }
    }
} catch (const std::exception &error) {
    fail("stage '" + lane.stages[number].plan->name + "': " + error.what());
}

Frame *Lanes::next_frame(Lane &lane) {
    Frame *frame = lane.free.take();
    if (frame == nullptr) return nullptr;
    std::unique_lock<std::mutex> lock(mutex_);
    const auto turn = [&] {
        if (deal_ == Deal::Each) return lane.left > 0;
        if (left_ <= 0) return false;
        return deal_ == Deal::Shared || (&lane == lanes_.front().get() && left_ == pending_);
    };
    changed_.wait(lock, [&] { return stopping_ || !failure_.empty() || turn(); });
    if (stopping_ || !failure_.empty()) return nullptr;
    --(deal_ == Deal::Each ? lane.left : left_);
    frame->number = lane.number++;
    const std::size_t which = std::size_t(frame->number) % n_reference_;
    for (std::size_t input = 0; input < inputs_.size(); ++input) {
        const std::vector<float> &values = inputs_[input].values;
        frame->values[input] = values.data() + which * (values.size() / n_reference_);
    }
    return frame;
}

void Lanes::finish(Lane &lane, Frame *frame) {
    const double latency_ms = double(now_ns() - frame->started_ns) / 1e6;
    const std::size_t which = std::size_t(frame->number) % n_reference_;
    std::vector<double> worst(outputs_.size(), 0.0);
    for (std::size_t output = 0; output < outputs_.size(); ++output) {
        const std::size_t n = outputs_[output].values.size() / n_reference_;
        const float *wanted = outputs_[output].values.data() + which * n;
        const float *came = frame->values[output_slots_[output]];
        for (std::size_t at = 0; at < n; ++at) {
            const double gap = std::fabs(double(came[at]) - double(wanted[at]));
            if (!(gap <= worst[output])) worst[output] = gap;  // also when it is not a number
        }
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (std::size_t output = 0; output < worst.size(); ++output) {
            if (!(worst[output] <= numbers_.worst[output])) numbers_.worst[output] = worst[output];
        }
        numbers_.latency_ms.push_back(latency_ms);
        --pending_;
        changed_.notify_all();
    }
    lane.free.give(frame);
}

Numbers Lanes::run(long n, Deal deal) {
    check_failed();
    std::unique_lock<std::mutex> lock(mutex_);
    numbers_.latency_ms.clear();
    for (auto &lane : lanes_) {
        lane->left = deal == Deal::Each ? n : 0;
        if (deal == Deal::Each) lane->number = 0;
        for (Stage &stage : lane->stages) stage.busy_ms.clear();
    }
    deal_ = deal;
    left_ = deal == Deal::Each ? 0 : n;
    pending_ = deal == Deal::Each ? n * long(lanes_.size()) : n;
    std::fill(numbers_.worst.begin(), numbers_.worst.end(), 0.0);
    numbers_.n_frames = pending_;
    const std::int64_t start_ns = now_ns();
    changed_.notify_all();
    changed_.wait(lock, [&] { return pending_ == 0 || !failure_.empty(); });
    Numbers numbers = numbers_;
    numbers.seconds = double(now_ns() - start_ns) / 1e9;
    lock.unlock();
    check_failed();
    for (auto &lane : lanes_) {
        for (Stage &stage : lane->stages) numbers.busy_ms.push_back(stage.busy_ms);
    }
    return numbers;
}

std::vector<std::string> Lanes::bindings() const {
    std::vector<std::string> lines;
    for (const auto &lane : lanes_) {
        for (const Stage &stage : lane->stages) lines.push_back(stage.binding);
    }
    return lines;
}

void Lanes::fail(const std::string &what) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = what;
    changed_.notify_all();
    for (auto &lane : lanes_) {
        lane->free.close();
        for (Stage &stage : lane->stages) {
            if (stage.in) stage.in->close();
        }
    }
}

void Lanes::check_failed() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) throw std::runtime_error(failure_);
}
