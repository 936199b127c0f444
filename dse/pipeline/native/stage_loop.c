#define _GNU_SOURCE
#include "stage_loop.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sequentially consistent throughout: "I sleep" and "I have counted on" must not both go unseen. */
#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)

#define EARLY 8  /* the first nap leaves out an eighth of the usual rest */
#define FINE 64 /* and further ones last a 64th of it */
#define SHORTEST_NAP_NS 20000
#define LATE_NS 100000 /* as late as the clock of a virtual machine may wake */
#define LONGEST_NAP_NS 5000000 /* for longer rests a wake is not worth saving */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_on(struct stage_gate *gate, uint32_t seen, int64_t timeout_ns) {
    struct timespec span = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    /* May return early, for whatever reason: callers look again. */
    syscall(SYS_futex, &gate->tick, FUTEX_WAIT_PRIVATE, seen, timeout_ns < 0 ? NULL : &span, NULL, 0);
}

void stage_loop_wake(struct stage_gate *gate) {
    __atomic_fetch_add(&gate->tick, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &gate->tick, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void wake_sleepers(struct stage_gate *const *gates, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        if (LOAD(&gates[k]->asleep)) stage_loop_wake(gates[k]);
}

static int ready(const struct stage_lane *lane, const struct stage_node *node) {
    int64_t frame = node->done.value; /* our own: no other thread writes it */
    if (frame >= LOAD(&lane->limit.value)) return 0;
    for (int64_t k = 0; k < node->n_sources; k++)
        if (LOAD(&node->sources[k]->value) <= frame) return 0;
    int64_t oldest = frame - node->n_slots;
    for (int64_t k = 0; k < node->n_users; k++)
        if (LOAD(&node->users[k]->value) <= oldest) return 0;
    /* Outputs leave together, so a quick branch may not run ahead of a slow one. */
    if (node->is_final)
        for (int64_t k = 0; k < lane->n_finals; k++)
            if (LOAD(&lane->finals[k]->done.value) <= oldest) return 0;
    if (lane->in_flight && node->enters)
        for (int64_t k = 0; k < lane->n_finals; k++)
            if (frame - LOAD(&lane->finals[k]->done.value) >= lane->in_flight) return 0;
    return 1;
}

/* The oldest frame first: it drains before new ones fill, and no stage starves. */
static struct stage_node *next_ready(const struct stage_lane *lane, struct stage_node *const *mine, int64_t n) {
    struct stage_node *best = NULL;
    for (int64_t k = 0; k < n; k++)
        if ((!best || mine[k]->done.value < best->done.value) && ready(lane, mine[k])) best = mine[k];
    return best;
}

static int all_done(const struct stage_lane *lane, struct stage_node *const *mine, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        if (mine[k]->done.value < LOAD(&lane->limit.value)) return 0;
    return 1;
}

static int can_go_on(const struct stage_lane *lane, struct stage_node *const *mine, int64_t n) {
    return LOAD(&lane->stopped.value) || next_ready(lane, mine, n) || all_done(lane, mine, n);
}

static int step(struct stage_lane *lane, struct stage_node *node, struct stage_failure *failure) {
    int64_t frame = node->done.value;
    STORE(&node->begun.value, frame + 1);
    if (lane->status) STORE(&lane->status[2 * node->index], frame + 1);
    int64_t received = now_ns();
    for (int64_t k = 0; k < node->n_inputs; k++)
        node->input_handles[k] = node->inputs[k].handles[frame % node->inputs[k].n_slots];
    for (int64_t k = 0; k < node->n_outputs; k++)
        node->output_handles[k] = node->outputs[k].handles[frame % node->outputs[k].n_slots];
    int64_t computing = now_ns();
    int status = lane->run(node->model, 0, (size_t)node->n_inputs, node->input_handles, (size_t)node->n_outputs,
                           node->output_handles);
    int64_t computed = now_ns();
    if (status) {
        *failure = (struct stage_failure){node->index, frame, status};
        return -1;
    }
    if (lane->times && (lane->last_times || frame < lane->n_times)) {
        int64_t row = frame % lane->n_times;
        int64_t *at = lane->times + (row * lane->n_stages + node->index) * STAGE_LOOP_TIMES;
        at[0] = received;
        at[1] = computing;
        at[2] = at[3] = computed; /* the outputs are where they belong */
    }
    STORE(&node->taken.value, frame + 1);
    STORE(&node->done.value, frame + 1);
    wake_sleepers(node->wake_done, node->n_wake_done);
    if (lane->in_flight) wake_sleepers(node->wake_entering, node->n_wake_entering);
    if (lane->status) STORE(&lane->status[2 * node->index + 1], frame + 1);
    return 0;
}

/* Sleep by the clock until shortly before the usual end of a rest, then look again and again; 1: can go on. */
static int nap(struct stage_lane *lane, struct stage_node *const *mine, int64_t n, int64_t usual_ns) {
    int64_t since = now_ns(), span_ns = usual_ns - (usual_ns / EARLY > LATE_NS ? usual_ns / EARLY : LATE_NS);
    while (now_ns() - since < 2 * usual_ns) {
        struct timespec span = {0, span_ns < SHORTEST_NAP_NS ? SHORTEST_NAP_NS : span_ns};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
        if (can_go_on(lane, mine, n)) return 1;
        span_ns = usual_ns / FINE;
    }
    return 0;
}

static void rest(struct stage_lane *lane, struct stage_node *const *mine, int64_t n, struct stage_gate *gate) {
    int64_t since = now_ns();
    if (lane->spin_ns > 0) {
        int64_t end = now_ns() + lane->spin_ns;
        while (now_ns() < end) {
            if (can_go_on(lane, mine, n)) return;
            sched_yield(); /* another thread may share the core */
        }
    }
    int64_t usual_ns = gate->rest_ns;
    int regular = 4 * gate->rest_error_ns < usual_ns;
    /* Stages that are equally slow rest by chance: naps would make each late for the other, again and again. */
    int slack = 2 * usual_ns > gate->work_ns;
    if (lane->in_flight == 1 || !regular || !slack || usual_ns < LATE_NS || usual_ns > LONGEST_NAP_NS ||
        !nap(lane, mine, n, usual_ns)) {
        uint32_t seen = LOAD(&gate->tick);
        STORE(&gate->asleep, 1);
        if (!can_go_on(lane, mine, n)) sleep_on(gate, seen, -1);
        STORE(&gate->asleep, 0);
    }
    int64_t end = now_ns(), off_ns = end - since - gate->rest_ns;
    gate->rest_ns += off_ns / 8;
    gate->rest_error_ns += ((off_ns < 0 ? -off_ns : off_ns) - gate->rest_error_ns) / 8;
    if (gate->rested_ns) gate->work_ns += (since - gate->rested_ns - gate->work_ns) / 8;
    gate->rested_ns = end;
}

int stage_loop_work(struct stage_lane *lane, struct stage_node *const *mine, int64_t n_mine,
                    struct stage_gate *gate, struct stage_failure *failure) {
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* naps end when they should */
    gate->rested_ns = 0;
    while (!LOAD(&lane->stopped.value)) {
        struct stage_node *node = next_ready(lane, mine, n_mine);
        if (node) {
            if (step(lane, node, failure)) return -1;
        } else if (all_done(lane, mine, n_mine)) {
            return 0;
        } else {
            rest(lane, mine, n_mine, gate);
        }
    }
    return 0;
}

static int is_out(const struct stage_lane *lane, int64_t frame) {
    for (int64_t k = 0; k < lane->n_finals; k++)
        if (LOAD(&lane->finals[k]->done.value) <= frame) return 0;
    return 1;
}

int stage_loop_wait(struct stage_lane *lane, int64_t frame, int64_t timeout_ns) {
    int64_t end = now_ns() + timeout_ns;
    while (!is_out(lane, frame)) {
        int64_t left = end - now_ns();
        if (left <= 0 || LOAD(&lane->stopped.value) || frame >= LOAD(&lane->limit.value)) return 0;
        uint32_t seen = LOAD(&lane->sink.tick);
        STORE(&lane->sink.asleep, 1);
        if (!is_out(lane, frame) && frame < LOAD(&lane->limit.value)) sleep_on(&lane->sink, seen, left);
        STORE(&lane->sink.asleep, 0);
    }
    return 1;
}

int64_t stage_loop_get(const struct stage_counter *counter) { return LOAD(&counter->value); }

void stage_loop_set(struct stage_counter *counter, int64_t value) { STORE(&counter->value, value); }

void stage_loop_layout(int64_t sizes[7]) {
    sizes[0] = sizeof(struct stage_counter);
    sizes[1] = sizeof(struct stage_gate);
    sizes[2] = sizeof(struct stage_port);
    sizes[3] = sizeof(struct stage_node);
    sizes[4] = sizeof(struct stage_lane);
    sizes[5] = sizeof(struct stage_failure);
    sizes[6] = STAGE_LOOP_VERSION;
}
