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
/* Of others' habits, where nothing hangs on the order. */
#define PEEK(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define SHOW(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

#define EARLY 8  /* the first nap leaves out an eighth of the usual rest */
#define FINE 64 /* and further ones last a 64th of it */
#define SHORTEST_NAP_NS 20000
#define LATE_NS 100000 /* as late as the clock of a virtual machine may wake */
#define LONGEST_NAP_NS 5000000 /* for longer rests a wake is not worth saving */
#define MOST_LATER 16 /* threads that one may let sleep on at a time */
#define TIME_TO_WAKE 3 /* steps of its own that must be left to a thread that does */

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

/* One of the lane's threads, and the sleepers that it wakes some steps later, so that one wake serves several
 * frames. */
struct thread {
    struct stage_lane *lane;
    struct stage_node *const *mine;
    int64_t n_mine;
    struct stage_gate *gate;
    int64_t n_later;
    struct {
        struct stage_gate *gate;
        int64_t steps; /* left */
    } later[MOST_LATER];
};

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
static struct stage_node *next_ready(const struct thread *t) {
    struct stage_node *best = NULL;
    for (int64_t k = 0; k < t->n_mine; k++)
        if ((!best || t->mine[k]->done.value < best->done.value) && ready(t->lane, t->mine[k])) best = t->mine[k];
    return best;
}

static int all_done(const struct thread *t) {
    for (int64_t k = 0; k < t->n_mine; k++)
        if (t->mine[k]->done.value < LOAD(&t->lane->limit.value)) return 0;
    return 1;
}

static int can_go_on(const struct thread *t) {
    return LOAD(&t->lane->stopped.value) || next_ready(t) || all_done(t);
}

/* How many steps a thread can take from here without anybody else, about. */
static int64_t ahead(const struct thread *t) {
    int64_t sum = 0;
    for (int64_t k = 0; k < t->n_mine; k++) {
        const struct stage_node *node = t->mine[k];
        int64_t end = LOAD(&t->lane->limit.value);
        for (int64_t i = 0; i < node->n_sources; i++) {
            int64_t made = LOAD(&node->sources[i]->value);
            if (made < end) end = made;
        }
        for (int64_t i = 0; i < node->n_users; i++) {
            int64_t room = LOAD(&node->users[i]->value) + node->n_slots;
            if (room < end) end = room;
        }
        sum += end - node->done.value;
    }
    return sum;
}

/* Whether a thread rests long beside what it works.  Stages that are equally slow rest by chance: each would be
 * late for the other, again and again. */
static int has_slack(const struct stage_gate *gate) { return 2 * PEEK(&gate->rest_ns) > PEEK(&gate->work_ns); }

static int may_sleep_on(const struct stage_gate *gate) {
    return has_slack(gate) && PEEK(&gate->rest_ns) < LONGEST_NAP_NS;
}

static void wake_sleepers(struct thread *t, struct stage_gate *const *gates, int64_t n, int64_t patience) {
    for (int64_t k = 0; k < n; k++) {
        if (!LOAD(&gates[k]->asleep)) continue;
        int64_t at = 0;
        while (at < t->n_later && t->later[at].gate != gates[k]) at++;
        if (at < t->n_later) continue;
        if (patience > 1 && at < MOST_LATER && !t->lane->in_flight && may_sleep_on(gates[k])) {
            t->later[at].gate = gates[k];
            t->later[at].steps = patience * t->n_mine;
            t->n_later++;
        } else {
            stage_loop_wake(gates[k]);
        }
    }
}

/* A step is done: wake those who have slept long enough, and all of them before work runs out or is over. */
static void wake_later(struct thread *t, int over) {
    if (!t->n_later) return;
    int all = over || ahead(t) < TIME_TO_WAKE;
    int64_t kept = 0;
    for (int64_t k = 0; k < t->n_later; k++) {
        struct stage_gate *gate = t->later[k].gate;
        if (!LOAD(&gate->asleep)) continue; /* somebody else has woken it */
        if (--t->later[k].steps > 0 && !all)
            t->later[kept++] = t->later[k];
        else
            stage_loop_wake(gate);
    }
    t->n_later = kept;
}

static int step(struct thread *t, struct stage_node *node, struct stage_failure *failure) {
    struct stage_lane *lane = t->lane;
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
    wake_sleepers(t, node->wake_done, node->n_wake_done, node->patience);
    if (lane->in_flight) wake_sleepers(t, node->wake_entering, node->n_wake_entering, 1);
    wake_later(t, 0);
    if (lane->status) STORE(&lane->status[2 * node->index + 1], frame + 1);
    return 0;
}

/* Sleep by the clock until shortly before the usual end of a rest, then look again and again; 1: can go on. */
static int nap(const struct thread *t, int64_t usual_ns) {
    int64_t since = now_ns(), span_ns = usual_ns - (usual_ns / EARLY > LATE_NS ? usual_ns / EARLY : LATE_NS);
    while (now_ns() - since < 2 * usual_ns) {
        struct timespec span = {0, span_ns < SHORTEST_NAP_NS ? SHORTEST_NAP_NS : span_ns};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
        if (can_go_on(t)) return 1;
        span_ns = usual_ns / FINE;
    }
    return 0;
}

static void rest(const struct thread *t) {
    struct stage_gate *gate = t->gate;
    int64_t since = now_ns();
    if (t->lane->spin_ns > 0) {
        int64_t end = now_ns() + t->lane->spin_ns;
        while (now_ns() < end) {
            if (can_go_on(t)) return;
            sched_yield(); /* another thread may share the core */
        }
    }
    int64_t usual_ns = gate->rest_ns;
    int regular = 4 * gate->rest_error_ns < usual_ns;
    if (t->lane->in_flight == 1 || !regular || !has_slack(gate) || usual_ns < LATE_NS ||
        usual_ns > LONGEST_NAP_NS || !nap(t, usual_ns)) {
        uint32_t seen = LOAD(&gate->tick);
        STORE(&gate->asleep, 1);
        if (!can_go_on(t)) sleep_on(gate, seen, -1);
        STORE(&gate->asleep, 0);
    }
    int64_t end = now_ns(), off_ns = end - since - gate->rest_ns;
    SHOW(&gate->rest_ns, gate->rest_ns + off_ns / 8);
    gate->rest_error_ns += ((off_ns < 0 ? -off_ns : off_ns) - gate->rest_error_ns) / 8;
    if (gate->rested_ns) SHOW(&gate->work_ns, gate->work_ns + (since - gate->rested_ns - gate->work_ns) / 8);
    gate->rested_ns = end;
}

int stage_loop_work(struct stage_lane *lane, struct stage_node *const *mine, int64_t n_mine,
                    struct stage_gate *gate, struct stage_failure *failure) {
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* naps end when they should */
    gate->rested_ns = 0;
    struct thread t = {.lane = lane, .mine = mine, .n_mine = n_mine, .gate = gate};
    int status = 0;
    while (!status && !LOAD(&lane->stopped.value)) {
        struct stage_node *node = next_ready(&t);
        if (node) {
            status = step(&t, node, failure);
        } else if (all_done(&t)) {
            break;
        } else {
            wake_later(&t, 1); /* nobody may sleep because of one who does */
            rest(&t);
        }
    }
    wake_later(&t, 1);
    return status;
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
