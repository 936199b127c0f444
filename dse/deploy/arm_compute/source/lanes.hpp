// Lanes of pinned stages that run at the same time, each stage with a thread pool of its own.
#pragma once

#include "bundle.hpp"
#include "net.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// A bounded queue of frames; a closed one lets everybody go on.
class Queue {
public:
    explicit Queue(std::size_t room) : room_(room) {}
    void give(Frame *frame);
    Frame *take();  // null: closed
    void close();

private:
    const std::size_t room_;
    bool closed_ = false;
    std::deque<Frame *> frames_;
    std::mutex mutex_;
    std::condition_variable changed_;
};

// What a run measured.
struct Numbers {
    double seconds = 0;
    long n_frames = 0;
    std::vector<double> latency_ms;           // of each frame
    std::vector<std::vector<double>> busy_ms;  // of each stage (lane by lane), of each frame
    std::vector<double> worst;                 // largest difference of each output
};

class Lanes {
public:
    // Starts all threads and builds all graphs; inputs and outputs are the reference frames.
    Lanes(const Plan &plan, const std::string &folder, bool pin, std::vector<Array> inputs,
          std::vector<Array> outputs);
    ~Lanes();
    Lanes(const Lanes &) = delete;
    Lanes &operator=(const Lanes &) = delete;

    // Runs n frames through all lanes together, or n through each of them, or one at a time.
    enum class Deal { Shared, Each, OneAtATime };
    Numbers run(long n, Deal deal);

    // Which cores each thread may use, in words; one line for each stage.
    std::vector<std::string> bindings() const;

private:
    struct Stage;
    struct Lane;

    void work(Lane &lane, std::size_t number);
    Frame *next_frame(Lane &lane);
    void finish(Lane &lane, Frame *frame);
    void fail(const std::string &what);
    void check_failed();

    const std::string folder_;
    const bool pin_;
    const std::vector<Array> inputs_, outputs_;
    std::size_t n_reference_ = 0;
    Slots slots_;
    std::vector<std::size_t> output_slots_;
    std::vector<std::unique_ptr<Lane>> lanes_;

    std::mutex mutex_;
    std::condition_variable changed_;
    Deal deal_ = Deal::Shared;
    long left_ = 0;      // frames to be begun, when shared
    long pending_ = 0;   // frames to be finished
    std::size_t n_ready_ = 0;
    bool stopping_ = false;
    std::string failure_;
    Numbers numbers_;
};
