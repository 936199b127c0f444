/* One lane of a pipeline: pinned threads, one per set of cores, that hand frames over without locks.
 *
 * stage_loop.h tells how the threads work together.  This file builds a lane of a bundle's plan for
 * them: compiles its stages where they will run, lays out the rings of slots, joins stages that feed
 * each other, and lets frames in and out.  Nothing is allocated or copied from stage to stage.
 *
 * The library can be used from other programs (and through ctypes):
 *
 *   char error[1024];
 *   lrt_runtime *runtime = lrt_load("libLiteRt.so", error, sizeof error);
 *   pl_lane *lane = pl_open(runtime, plan_text, "bundle", 0, 50000, error, sizeof error);
 *   pl_set_frames(lane, frames, n_frames);              // frames[frame * n_inputs + input]
 *   pl_warm_up(lane);                                   // not for models with state
 *   pl_run(lane, &(pl_request){.max_ns = 1000000000}, &figures);   // at full speed, or:
 *   pl_start(lane); pl_push(lane, inputs, -1); pl_pull(lane, outputs, -1); pl_end(lane); ... pl_finish(lane);
 *   pl_close(lane);
 *
 * Threads: all functions of a lane from one thread, but pl_pull may run in a second one, and
 * pl_stop, pl_abort and pl_error anywhere.  Different lanes are independent.  Functions return -1 when the lane has
 * failed; pl_error then says why.  All times are nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef DSE_PIPELINE_H
#define DSE_PIPELINE_H

#include <stddef.h>
#include <stdint.h>

#include "litert.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_lane pl_lane;

#define PL_TIMES 4        /* time stamps of a frame in a stage: receive, compute, computed, sent */
#define PL_BUCKETS 2048   /* of the histogram of latencies */

/* What pl_run is to do; zeros mean "no limit" and "no". */
typedef struct {
  uint64_t max_frames;
  int64_t max_ns;
  int64_t warm_ns;        /* frames that leave earlier than this after the start are not counted */
  int64_t start_ns;       /* when to start, so that lanes start together */
  int32_t in_flight;      /* most frames inside the lane */
  int32_t reserved;
  int64_t *stamps;        /* stamps[(frame * n_stages + stage) * PL_TIMES + k], or NULL */
  uint64_t stamp_frames;  /* room in it; later frames are not stamped */
} pl_request;

/* What pl_run found. */
typedef struct {
  uint64_t frames;        /* that left the lane */
  uint64_t counted;       /* of them, between the two times that follow */
  int64_t first_ns, last_ns;
  uint32_t latencies[PL_BUCKETS]; /* of the counted ones, from the first stage's start: see pl_bucket_ns */
} pl_figures;

/* Build the lane: pin its threads, compile its stages one after another, read the masks back.
 * `plan_text` is the content of plan.txt; `spin_ns` is how long an idle thread spins before it sleeps. */
pl_lane *pl_open(lrt_runtime *runtime, const char *plan_text, const char *folder, int lane, int64_t spin_ns,
                 char *error, size_t error_size);
void pl_close(pl_lane *lane);

int pl_n_stages(const pl_lane *lane);
int pl_n_inputs(const pl_lane *lane);
int pl_n_outputs(const pl_lane *lane);
int pl_n_slots(const pl_lane *lane); /* frames that the source holds: most for pl_set_frames, most ahead of pl_pull */

/* Compile all stages anew: the next frame finds no trace of earlier ones. */
int pl_reset(pl_lane *lane);

/* Keep frames (copies of the first pl_n_slots) that pl_run repeats; returns how many are kept. */
int pl_set_frames(pl_lane *lane, const void *const *values, int n_frames);

/* Run one frame through: allocates, packs weights, starts the runtime's threads. */
int pl_warm_up(pl_lane *lane);

/* Run at full speed until a limit or pl_stop; returns when all frames that entered have left. */
int pl_run(pl_lane *lane, const pl_request *request, pl_figures *figures);

/* Let no further frame enter the lane that runs. */
void pl_stop(pl_lane *lane);

/* Frames from outside: start, push and pull, end, finish. */
int pl_start(pl_lane *lane);
int pl_push(pl_lane *lane, const void *const *inputs, int64_t timeout_ns); /* 1 taken, 0 no room in time */
int pl_pull(pl_lane *lane, void *const *outputs, int64_t timeout_ns); /* 1 a frame, 0 none in time, 2 the end */
void pl_end(pl_lane *lane);    /* no more frames will be pushed */
int pl_finish(pl_lane *lane);  /* wait for the threads */

/* Drop the frames under way: pushing and pulling return -1, pl_finish returns at once with 0. */
void pl_abort(pl_lane *lane);

/* Read back the affinity masks of the lane's threads and of all that these have made (they inherit the
 * name); returns how many threads that are, or -1 when one may run elsewhere than its stage. */
int pl_check_affinity(pl_lane *lane);

/* Mean time in the runtime of a stage per frame since pl_run or pl_start. */
int64_t pl_busy_ns(const pl_lane *lane, int stage);

/* Upper end of a bucket of latencies; buckets are 3 % wide. */
int64_t pl_bucket_ns(int bucket);

const char *pl_error(const pl_lane *lane);

#ifdef __cplusplus
}
#endif

#endif
