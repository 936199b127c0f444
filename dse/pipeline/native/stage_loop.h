/* The loop of a pipeline's threads, in C: the oldest frame that can go on runs its stage next.
 *
 * Frames are numbered and every stage works on them in order, so a hand-over needs no queue: a
 * stage counts the frames it has begun, taken (its inputs are free again) and done.  Frame f lies
 * in slot f modulo the length of its maker's ring.  A stage may start frame f when every source
 * has done it and every user has taken frame f minus the ring's length.  Counters are the only
 * thing that threads share; each is written by one thread only.
 *
 * A thread with nothing to do spins for a while if asked to, then sleeps on its gate (a futex).
 * Whoever counts on wakes those that may wait for it.  Waking costs the one who wakes: 20 to 40 us
 * in a virtual machine.  So a thread whose rests are alike and not much shorter than its work, as that
 * of a stage behind a slower one, naps by the clock instead, and nobody needs to wake it.  Where rests are
 * too short for that, one wake serves several frames: a thread lets such a sleeper lie for some steps, but never
 * while it rests itself.
 *
 * Who uses it fills in the structures (all memory is the caller's), runs stage_loop_work once per
 * gate in a thread of its own, and may watch and steer through the functions below meanwhile.
 */
#ifndef STAGE_LOOP_H
#define STAGE_LOOP_H

#include <stddef.h>
#include <stdint.h>

#define STAGE_LOOP_VERSION 4
#define STAGE_LOOP_TIMES 4 /* receive starts, compute starts, compute ends, send ends */
#define STAGE_LOOP_LINE 64

/* A counter with a cache line of its own. */
struct stage_counter {
    _Alignas(STAGE_LOOP_LINE) int64_t value;
};

/* Where a thread sleeps. */
struct stage_gate {
    _Alignas(STAGE_LOOP_LINE) uint32_t tick;
    uint32_t asleep;
    /* Of late, on average: how long its rests last, how far off that is, how long it works between them; and when
     * the last rest ended.  The thread's own. */
    int64_t rest_ns, rest_error_ns, work_ns, rested_ns;
};

/* A tensor's buffers: one handle of the runtime for each slot of its maker's ring. */
struct stage_port {
    void *const *handles;
    int64_t n_slots;
};

struct stage_node {
    struct stage_counter begun, taken, done;
    int64_t index;   /* position in times and status */
    int64_t n_slots; /* length of the ring of its outputs */
    void *model;     /* first argument of run */
    int64_t n_inputs, n_outputs;
    const struct stage_port *inputs, *outputs;
    void **input_handles, **output_handles; /* room for a call, n_inputs and n_outputs long */
    int64_t n_sources, n_users, n_wake_done, n_wake_entering;
    struct stage_counter *const *sources; /* done of the makers, or what is available */
    struct stage_counter *const *users;   /* taken of the users, or of the sink */
    struct stage_gate *const *wake_done;
    struct stage_gate *const *wake_entering;
    int64_t is_final, enters;
    int64_t patience; /* frames after which sleepers with slack are woken; at most 1: at once */
};

typedef int (*stage_run)(void *model, size_t signature, size_t n_inputs, void **inputs, size_t n_outputs,
                         void **outputs);

struct stage_lane {
    struct stage_counter limit;     /* frames to make */
    struct stage_counter stopped;   /* not 0: come back at once */
    struct stage_counter available; /* frames whose inputs are there */
    struct stage_counter taken;     /* frames that the sink has taken */
    struct stage_gate sink;
    stage_run run;
    int64_t n_finals;
    struct stage_node *const *finals;
    int64_t in_flight; /* most frames inside the lane, 0 for no such limit */
    int64_t spin_ns;
    int64_t n_stages;
    int64_t *times; /* [frame][stage][STAGE_LOOP_TIMES] in ns of CLOCK_MONOTONIC, or NULL */
    int64_t n_times; /* frames that there is room for */
    int64_t last_times; /* not 0: the last n_times frames are kept, else the first */
    int64_t *status; /* [stage][2]: frames begun and done, for a watcher, or NULL */
};

struct stage_failure {
    int64_t stage, frame, status;
};

/* Run the stages of one thread until the limit, or until stopped.  0: done or stopped; -1: a stage
 * failed, and failure says which. */
int stage_loop_work(struct stage_lane *lane, struct stage_node *const *mine, int64_t n_mine,
                    struct stage_gate *gate, struct stage_failure *failure);

/* Wait until a frame has left all final stages.  1: it has; 0: time is up, or the limit is lower. */
int stage_loop_wait(struct stage_lane *lane, int64_t frame, int64_t timeout_ns);

int64_t stage_loop_get(const struct stage_counter *counter);
void stage_loop_set(struct stage_counter *counter, int64_t value);

/* Make a thread look again whether it can go on, also when it does not sleep. */
void stage_loop_wake(struct stage_gate *gate);

/* Sizes of the structures above, for callers in other languages: counter, gate, port, node, lane,
 * failure, and the version. */
void stage_loop_layout(int64_t sizes[7]);

#endif
