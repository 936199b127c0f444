/* Random graphs of stages that do arithmetic, run by the stage loop with random rings and spinning;
 * every output of every frame is compared with what the graph means.  Argument: how many graphs. */
#define _GNU_SOURCE
#include "stage_loop.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STAGES = 6, MOST_UNITS = 3, MOST_RING = 4, FRAMES = 300 };

struct model {
    int number, n_inputs;
    unsigned slow;
};

struct graph {
    struct stage_lane lane;
    struct stage_node nodes[MOST_STAGES];
    struct stage_gate gates[MOST_UNITS];
    struct model models[MOST_STAGES];
    int64_t values[MOST_STAGES][MOST_RING], source[FRAMES];
    void *slots[MOST_STAGES][MOST_RING], *source_slots[FRAMES];
    struct stage_port inputs[MOST_STAGES][MOST_STAGES], outputs[MOST_STAGES];
    void *in_room[MOST_STAGES][MOST_STAGES], *out_room[MOST_STAGES];
    struct stage_counter *sources[MOST_STAGES][MOST_STAGES], *users[MOST_STAGES][MOST_STAGES + 1];
    struct stage_gate *wakes[MOST_STAGES][MOST_UNITS + 1], *entering[MOST_STAGES][MOST_UNITS];
    struct stage_node *finals[1], *mine[MOST_UNITS][MOST_STAGES];
    int n_mine[MOST_UNITS], maker[MOST_STAGES][MOST_STAGES]; /* -1: the source */
    int n_stages, n_units;
};

struct thread {
    struct graph *graph;
    int unit, result;
    struct stage_failure failure;
};

static unsigned state;
static int pick(int n) { return (int)((state = state * 1664525u + 1013904223u) >> 8) % n; }

static int run(void *model, size_t signature, size_t n_in, void **in, size_t n_out, void **out) {
    struct model *m = model;
    if (signature != 0 || n_in != (size_t)m->n_inputs || n_out != 1) return 77;
    int64_t total = m->number;
    for (size_t k = 0; k < n_in; k++) total += (int64_t)(k + 2) * *(int64_t *)in[k];
    for (volatile unsigned wait = 0; wait < m->slow; wait++) {}
    *(int64_t *)out[0] = total;
    return 0;
}

static void *work(void *argument) {
    struct thread *t = argument;
    struct graph *g = t->graph;
    t->result = stage_loop_work(&g->lane, g->mine[t->unit], g->n_mine[t->unit], &g->gates[t->unit], &t->failure);
    return NULL;
}

static struct graph *build(void) {
    struct graph *g = aligned_alloc(STAGE_LOOP_LINE, (sizeof *g + 63) / 64 * 64);
    memset(g, 0, sizeof *g);
    int n = g->n_stages = 1 + pick(MOST_STAGES);
    g->n_units = 1 + pick(MOST_UNITS);
    int unit[MOST_STAGES];
    for (int f = 0; f < FRAMES; f++) {
        g->source[f] = 7 * f;
        g->source_slots[f] = &g->source[f];
    }
    for (int s = 0; s < n; s++) {
        struct stage_node *node = &g->nodes[s];
        unit[s] = pick(g->n_units);
        g->mine[unit[s]][g->n_mine[unit[s]]++] = node;
        node->index = s;
        node->n_slots = 2 + pick(MOST_RING - 1);
        node->patience = pick(4);
        for (int k = 0; k < MOST_RING; k++) g->slots[s][k] = &g->values[s][k];
        /* Everything but the source is used: the stage before always is. */
        int n_in = 0;
        for (int m = -1; m < s; m++)
            if (m == s - 1 || pick(3) == 0) g->maker[s][n_in++] = m;
        g->models[s] = (struct model){s + 1, n_in, (unsigned)pick(3) * (unsigned)pick(2000)};
        node->model = &g->models[s];
        node->n_inputs = n_in;
        node->n_outputs = 1;
        for (int k = 0; k < n_in; k++) {
            int m = g->maker[s][k];
            g->inputs[s][k] = m < 0 ? (struct stage_port){g->source_slots, FRAMES}
                                    : (struct stage_port){g->slots[m], g->nodes[m].n_slots};
            g->sources[s][node->n_sources++] = m < 0 ? &g->lane.available : &g->nodes[m].done;
            if (m < 0) node->enters = 1;
            else g->users[m][g->nodes[m].n_users++] = &node->taken;
        }
        g->outputs[s] = (struct stage_port){g->slots[s], node->n_slots};
        node->inputs = g->inputs[s];
        node->outputs = &g->outputs[s];
        node->input_handles = g->in_room[s];
        node->output_handles = &g->out_room[s];
    }
    struct stage_node *last = &g->nodes[n - 1];
    g->finals[0] = last;
    last->is_final = 1;
    g->users[n - 1][last->n_users++] = &g->lane.taken;
    for (int s = 0; s < n; s++) {
        struct stage_node *node = &g->nodes[s];
        for (int u = 0; u < g->n_units; u++)
            if (u != unit[s]) {
                g->wakes[s][node->n_wake_done++] = &g->gates[u];
                g->entering[s][node->n_wake_entering++] = &g->gates[u];
            }
        if (s == n - 1) g->wakes[s][node->n_wake_done++] = &g->lane.sink;
        node->sources = g->sources[s];
        node->users = g->users[s];
        node->wake_done = g->wakes[s];
        node->wake_entering = g->entering[s];
    }
    g->lane.run = run;
    g->lane.n_finals = 1;
    g->lane.finals = g->finals;
    g->lane.n_stages = n;
    g->lane.in_flight = pick(3) ? 0 : 1 + pick(3);
    g->lane.spin_ns = pick(3) ? 0 : 20000;
    g->lane.n_times = FRAMES / 2;
    g->lane.times = calloc((size_t)(FRAMES / 2 * n * STAGE_LOOP_TIMES), sizeof(int64_t));
    g->lane.status = calloc((size_t)(2 * n), sizeof(int64_t));
    g->lane.limit.value = INT64_MAX;
    return g;
}

static int64_t meaning(const struct graph *g, int64_t frame) {
    int64_t known[MOST_STAGES];
    for (int s = 0; s < g->n_stages; s++) {
        known[s] = s + 1;
        for (int k = 0; k < g->nodes[s].n_inputs; k++) {
            int m = g->maker[s][k];
            known[s] += (k + 2) * (m < 0 ? g->source[frame] : known[m]);
        }
    }
    return known[g->n_stages - 1];
}

int main(int argc, char **argv) {
    int n_graphs = argc > 1 ? atoi(argv[1]) : 10;
    for (int number = 0; number < n_graphs; number++) {
        state = (unsigned)number * 2654435761u + 1u;
        struct graph *g = build();
        struct thread threads[MOST_UNITS];
        pthread_t ids[MOST_UNITS];
        for (int u = 0; u < g->n_units; u++) {
            threads[u] = (struct thread){g, u, 0, {0, 0, 0}};
            pthread_create(&ids[u], NULL, work, &threads[u]);
        }
        struct stage_node *last = g->finals[0];
        int64_t offered = 0;
        for (int64_t frame = 0; frame < FRAMES; frame++) {
            /* Frames come in bursts; every fifth graph is stopped half-way. */
            if (frame >= offered) {
                offered = frame + 1 + pick(8) < FRAMES ? frame + 1 + pick(8) : FRAMES;
                stage_loop_set(&g->lane.available, offered);
                for (int u = 0; u < g->n_units; u++) stage_loop_wake(&g->gates[u]);
            }
            while (!stage_loop_wait(&g->lane, frame, 100000000)) {}
            int64_t got = g->values[g->n_stages - 1][frame % last->n_slots];
            if (got != meaning(g, frame)) {
                printf("graph %d frame %ld: %ld, expected %ld\n", number, (long)frame, (long)got,
                       (long)meaning(g, frame));
                return 1;
            }
            stage_loop_set(&g->lane.taken, frame + 1);
            for (int u = 0; u < g->n_units; u++) stage_loop_wake(&g->gates[u]);
            if (number % 5 == 4 && frame == FRAMES / 2) break;
        }
        if (number % 5 == 4) stage_loop_set(&g->lane.stopped, 1);
        else stage_loop_set(&g->lane.limit, FRAMES);
        for (int u = 0; u < g->n_units; u++) stage_loop_wake(&g->gates[u]);
        for (int u = 0; u < g->n_units; u++) {
            pthread_join(ids[u], NULL);
            if (threads[u].result) return 2;
        }
        free(g->lane.times);
        free(g->lane.status);
        free(g);
    }
    printf("%d graphs, every frame right\n", n_graphs);
    return 0;
}
