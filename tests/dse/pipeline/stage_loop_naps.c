/* A quick stage behind a slow one: prints how often the quick one's thread had to be woken.
 * Arguments: how long the slow one works, in ns, and the patience of both. */
#define _GNU_SOURCE
#include "stage_loop.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { FRAMES = 400, RING = 8 };

static struct stage_lane lane;
static struct stage_node nodes[2];
static struct stage_gate gates[2];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int run(void *model, size_t signature, size_t n_in, void **in, size_t n_out, void **out) {
    (void)signature, (void)n_in, (void)in, (void)n_out, (void)out;
    int64_t end = now_ns() + *(int64_t *)model;
    while (now_ns() < end) {}
    return 0;
}

static void *work(void *argument) {
    struct stage_node *mine[1] = {&nodes[(size_t)argument]};
    struct stage_failure failure;
    stage_loop_work(&lane, mine, 1, &gates[(size_t)argument], &failure);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int64_t work_ns[2] = {atoll(argv[1]), 0};
    struct stage_counter *made[1] = {&nodes[0].done}, *taken[1] = {&nodes[1].taken};
    struct stage_counter *available[1] = {&lane.available}, *drained[1] = {&lane.taken};
    struct stage_gate *wakes_user[1] = {&gates[1]}, *wakes_maker[1] = {&gates[0]};
    struct stage_node *finals[1] = {&nodes[1]};
    void *no_handles[1];
    for (int s = 0; s < 2; s++) {
        nodes[s].index = s;
        nodes[s].n_slots = RING;
        nodes[s].patience = atoll(argv[2]);
        nodes[s].model = &work_ns[s];
        nodes[s].input_handles = nodes[s].output_handles = no_handles;
        nodes[s].n_sources = nodes[s].n_users = nodes[s].n_wake_done = 1;
        nodes[s].sources = s ? made : available;
        nodes[s].users = s ? drained : taken;
        nodes[s].wake_done = s ? wakes_maker : wakes_user;
    }
    nodes[0].enters = nodes[1].is_final = 1;
    lane.run = run;
    lane.n_finals = 1;
    lane.finals = finals;
    lane.n_stages = 2;
    lane.limit.value = lane.available.value = FRAMES;
    lane.taken.value = FRAMES;
    pthread_t ids[2];
    for (size_t s = 0; s < 2; s++) pthread_create(&ids[s], NULL, work, (void *)s);
    for (int s = 0; s < 2; s++) pthread_join(ids[s], NULL);
    printf("%ld of %d frames, woken %u times\n", (long)nodes[1].done.value, FRAMES, gates[1].tick);
    return nodes[1].done.value != FRAMES;
}
