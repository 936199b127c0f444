/* Runs the pipelines of a bundle; needs the shared library of LiteRT and nothing else.
 *
 * Lanes run beside each other in one process; pipeline.h tells how a lane works.  SIGINT and SIGTERM
 * stop the sources; what is under way is finished and delivered.  Exit codes: 0 done, 1 failed,
 * 2 bad input. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "pipeline.h"
#include "plan.h"

#define FAILED 1
#define BAD_INPUT 2
#define MAX_STREAMS 64
#define WARM_UP_NS 500000000LL
#define POLL_NS 20000000LL
#define WINDOW 4 /* frames that wait to be delivered in order, per frame that fits into the lanes */

static const char USAGE[] =
    "usage: run [options]         (in the folder of the bundle, or with --bundle)\n"
    "  --verify            check all files, and the outputs of every lane against the reference\n"
    "  --seconds S         full speed on the reference frames for so long, after a warm-up [5]\n"
    "  --frames PATH       run frames: a .npy file, a folder with input_0.npy, ..., or - for raw frames\n"
    "                      on standard input; once per stream for a model with state\n"
    "  --output PATH       a folder for output_0.npy, ..., or - for raw outputs; once per --frames\n"
    "  --bundle FOLDER     [.]\n"
    "  --library FILE      LiteRT's shared library [$LITERT_LIBRARY, else libLiteRt.so]\n"
    "  --spin-us N         how long an idle thread spins before it sleeps [50]\n"
    "  --json              figures as lines of JSON on standard output\n"
    "  --help\n";

typedef struct {
  const char *bundle, *library, *frames[MAX_STREAMS], *outputs[MAX_STREAMS];
  int n_frames, n_outputs, verify, json;
  double seconds;
  int64_t spin_ns;
} options;

typedef struct {
  const options *asked;
  plan *plan;
  lrt_runtime *runtime;
  pl_lane **lanes;
  char *text;
} bundle;

static volatile sig_atomic_t stops;

static void on_signal(int number) {
  if (stops++) _exit(128 + number);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pause_ns(int64_t time_ns) {
  struct timespec pause = {(time_t)(time_ns / 1000000000), (long)(time_ns % 1000000000)};
  nanosleep(&pause, NULL);
}

static int bad(const char *text) {
  fprintf(stderr, "run: %s\n", text);
  return BAD_INPUT;
}

static int failed(const char *text) {
  fprintf(stderr, "run: %s\n", text);
  return FAILED;
}

/* The runtime talks while it starts; keep its words and show them only when something failed. */
static FILE *kept;
static int real_stderr = -1;

static void hush(void) {
  kept = tmpfile();
  fflush(stderr);
  real_stderr = dup(STDERR_FILENO);
  if (kept && real_stderr >= 0) dup2(fileno(kept), STDERR_FILENO);
}

static void speak(int show) {
  char text[4096];
  size_t n;
  fflush(stderr);
  if (real_stderr >= 0) {
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    real_stderr = -1;
  }
  if (!kept) return;
  rewind(kept);
  while (show && (n = fread(text, 1, sizeof text, kept)) > 0) fwrite(text, 1, n, stderr);
  fclose(kept);
  kept = NULL;
}

/* ------------------------------------------------------------------ frames and outputs */

typedef struct {
  const plan *plan;
  npy_frames *files; /* of each input or output */
  int n;
  uint64_t n_frames, at;
  int raw;             /* standard input */
  char **buffers;      /* for raw frames */
  const void **values; /* of the frame at hand */
} source;

static void source_close(source *from) {
  for (int at = 0; from->files && at < from->n; at++) npy_close(&from->files[at]);
  for (int at = 0; from->buffers && at < from->n; at++) free(from->buffers[at]);
  free(from->files);
  free(from->buffers);
  free(from->values);
}

static int source_open(source *from, const plan_ports *ports, const char *path, const char *side, char *error,
                       size_t error_size) {
  size_t length = strlen(path), n = (size_t)ports->n + 1;
  int single = length > 4 && strcmp(path + length - 4, ".npy") == 0;
  memset(from, 0, sizeof *from);
  from->n = ports->n;
  from->raw = strcmp(path, "-") == 0;
  from->files = calloc(n, sizeof *from->files);
  from->buffers = calloc(n, sizeof *from->buffers);
  from->values = calloc(n, sizeof *from->values);
  if (!from->files || !from->buffers || !from->values) return snprintf(error, error_size, "out of memory"), -1;
  if (single && ports->n != 1) {
    snprintf(error, error_size, "%s: the model has %d %ss: give a folder with %s_0.npy, %s_1.npy, ...", path, ports->n,
             side, side, side);
    return -1;
  }
  for (int at = 0; at < ports->n; at++) {
    char name[PATH_MAX];
    const lrt_port *tensor = &ports->items[at].tensor;
    if (from->raw) {
      if (!(from->buffers[at] = malloc(tensor->n_bytes + 1))) return snprintf(error, error_size, "out of memory"), -1;
      from->values[at] = from->buffers[at];
      continue;
    }
    if (single)
      snprintf(name, sizeof name, "%s", path);
    else
      snprintf(name, sizeof name, "%s/%s_%d.npy", path, side, at);
    if (npy_open(&from->files[at], name, tensor, error, error_size)) return -1;
    if (at && from->files[at].n_frames != from->files[0].n_frames) {
      snprintf(error, error_size, "%s: the files hold different numbers of frames", path);
      return -1;
    }
    from->n_frames = from->files[at].n_frames;
  }
  return 0;
}

static void source_frame(source *from, const plan_ports *ports, uint64_t frame) {
  for (int at = 0; at < ports->n; at++)
    from->values[at] = from->files[at].values + frame * ports->items[at].tensor.n_bytes;
}

/* 1 and a frame in `values`, 0 at the end, -1 and a message. */
static int source_next(source *from, const plan_ports *ports, char *error, size_t error_size) {
  if (!from->raw) {
    if (from->at >= from->n_frames) return 0;
    source_frame(from, ports, from->at++);
    return 1;
  }
  size_t total = 0;
  for (int at = 0; at < ports->n; at++)
    for (size_t had = 0; had < ports->items[at].tensor.n_bytes;) {
      struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
      while (!stops && poll(&ready, 1, (int)(POLL_NS / 1000000)) == 0) continue;
      ssize_t got = stops ? 0 : read(STDIN_FILENO, from->buffers[at] + had, ports->items[at].tensor.n_bytes - had);
      if (got < 0 && errno == EINTR && !stops) continue;
      if (got <= 0) {
        if (!total || stops) return 0;
        snprintf(error, error_size, "standard input ended inside a frame, after %zu bytes of it", total);
        return -1;
      }
      had += (size_t)got;
      total += (size_t)got;
    }
  return 1;
}

typedef struct {
  FILE **files; /* of each output; NULL: nobody wants them */
  int raw;
  uint64_t n_frames;
} sink;

static int sink_open(sink *to, const plan_ports *ports, const char *path, char *error, size_t error_size) {
  memset(to, 0, sizeof *to);
  if (!path) return 0;
  to->raw = strcmp(path, "-") == 0;
  if (to->raw) return 0;
  if (mkdir(path, 0777) && errno != EEXIST) {
    snprintf(error, error_size, "%s: can not be made: %s", path, strerror(errno));
    return -1;
  }
  to->files = calloc((size_t)ports->n + 1, sizeof *to->files);
  for (int at = 0; to->files && at < ports->n; at++) {
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/output_%d.npy", path, at);
    to->files[at] = fopen(name, "wb");
    if (!to->files[at] || npy_write_header(to->files[at], &ports->items[at].tensor, 0)) {
      snprintf(error, error_size, "%s: can not be written: %s", name, strerror(errno));
      return -1;
    }
  }
  return to->files ? 0 : -1;
}

static int sink_put(sink *to, const plan_ports *ports, void *const *outputs) {
  to->n_frames++;
  if (!to->files && !to->raw) return 0;
  for (int at = 0; at < ports->n; at++) {
    size_t n_bytes = ports->items[at].tensor.n_bytes;
    if (fwrite(outputs[at], 1, n_bytes, to->raw ? stdout : to->files[at]) != n_bytes) return -1;
  }
  return to->raw ? fflush(stdout) : 0;
}

static int sink_close(sink *to, const plan_ports *ports) {
  int status = 0;
  for (int at = 0; to->files && at < ports->n; at++) {
    if (!to->files[at]) continue;
    if (fseek(to->files[at], 0, SEEK_SET) || npy_write_header(to->files[at], &ports->items[at].tensor, to->n_frames))
      status = -1;
    if (fclose(to->files[at])) status = -1;
  }
  free(to->files);
  to->files = NULL;
  return status;
}

static void **make_outputs(const plan_ports *ports) {
  void **made = calloc((size_t)ports->n + 1, sizeof *made);
  for (int at = 0; made && at < ports->n; at++)
    if (!(made[at] = malloc(ports->items[at].tensor.n_bytes + 1))) return NULL;
  return made;
}

static void free_outputs(void **outputs, const plan_ports *ports) {
  for (int at = 0; outputs && at < ports->n; at++) free(outputs[at]);
  free(outputs);
}

/* ------------------------------------------------------------------ full speed */

typedef struct {
  pl_lane *lane;
  pl_request request;
  pl_figures figures;
  int status;
  atomic_int done;
} race;

static void *race_lane(void *context) {
  race *one = context;
  one->status = pl_run(one->lane, &one->request, &one->figures);
  atomic_store(&one->done, 1);
  return NULL;
}

static double rate_of(const pl_figures *figures) {
  int64_t window = figures->last_ns - figures->first_ns;
  return window > 0 ? (double)figures->counted * 1e9 / (double)window : 0.0;
}

static int64_t quantile(const pl_figures *figures, double share) {
  uint64_t wanted = (uint64_t)(share * (double)figures->counted), seen = 0;
  for (int bucket = 0; bucket < PL_BUCKETS; bucket++)
    if ((seen += figures->latencies[bucket]) > wanted) return pl_bucket_ns(bucket);
  return 0;
}

static void report_lane(const bundle *of, int number, const pl_figures *figures) {
  const plan_lane *lane = &of->plan->lanes[number];
  long long median = quantile(figures, 0.5), high = quantile(figures, 0.99);
  unsigned long long frames = figures->frames;
  if (of->asked->json) {
    printf("{\"lane\": %d, \"frames\": %llu, \"hz\": %.6g, \"latency_ns\": %lld, \"latency_p99_ns\": %lld, \"busy_ns\": [",
           number, frames, rate_of(figures), median, high);
    for (int at = 0; at < lane->n_stages; at++)
      printf("%s%lld", at ? ", " : "", (long long)pl_busy_ns(of->lanes[number], at));
    printf("]}\n");
    return;
  }
  fprintf(stderr, "lane %d, frames %llu, %.4g frames/s, latency %.3g ms, latency p99 %.3g ms, busy", number, frames,
          rate_of(figures), (double)median / 1e6, (double)high / 1e6);
  for (int at = 0; at < lane->n_stages; at++)
    fprintf(stderr, "%s %s %.3g ms", at ? "," : "", lane->stages[at].name,
            (double)pl_busy_ns(of->lanes[number], at) / 1e6);
  fprintf(stderr, "\n");
}

static int full_speed(bundle *of) {
  char folder[PATH_MAX], error[2048];
  const plan_ports *ports = &of->plan->inputs;
  int n_lanes = of->plan->n_lanes, status = 0;
  source frames;
  snprintf(folder, sizeof folder, "%s/reference", of->asked->bundle);
  if (source_open(&frames, ports, folder, "input", error, sizeof error)) {
    source_close(&frames);
    return bad(error);
  }
  race *races = calloc((size_t)n_lanes, sizeof *races);
  pthread_t *threads = calloc((size_t)n_lanes, sizeof *threads);
  const void **values = calloc((size_t)(frames.n_frames * (uint64_t)ports->n + 1), sizeof *values);
  if (!races || !threads || !values) return failed("out of memory");
  for (uint64_t frame = 0; frame < frames.n_frames; frame++) {
    source_frame(&frames, ports, frame);
    for (int at = 0; at < ports->n; at++) values[frame * (uint64_t)ports->n + (uint64_t)at] = frames.values[at];
  }
  for (int at = 0; at < n_lanes && !status; at++) {
    pl_set_frames(of->lanes[at], values, (int)frames.n_frames);
    if (!of->plan->stateful && pl_warm_up(of->lanes[at])) status = failed(pl_error(of->lanes[at]));
  }
  int64_t start = now_ns() + POLL_NS;
  int n_started = 0;
  for (int at = 0; at < n_lanes && !status; at++) {
    races[at].lane = of->lanes[at];
    races[at].request.start_ns = start;
    races[at].request.warm_ns = WARM_UP_NS;
    races[at].request.max_ns = WARM_UP_NS + (int64_t)(of->asked->seconds * 1e9);
    if (pthread_create(&threads[at], NULL, race_lane, &races[at])) status = failed("no thread can be made");
    n_started += !status;
  }
  for (int running = n_started, broken = 0; running;) {
    pause_ns(POLL_NS);
    running = 0;
    for (int at = 0; at < n_started; at++) {
      if (!atomic_load(&races[at].done)) running++;
      else if (races[at].status) broken = 1;
    }
    for (int at = 0; (stops || broken) && at < n_started; at++) pl_stop(of->lanes[at]);
  }
  for (int at = 0; at < n_started; at++) pthread_join(threads[at], NULL);
  double total = 0;
  unsigned long long n_frames = 0;
  for (int at = 0; at < n_started; at++) {
    if (races[at].status || pl_check_affinity(of->lanes[at]) < 0) {
      status = failed(pl_error(of->lanes[at]));
      continue;
    }
    report_lane(of, at, &races[at].figures);
    total += rate_of(&races[at].figures);
    n_frames += races[at].figures.frames;
  }
  if (!status && of->asked->json)
    printf("{\"lanes\": %d, \"frames\": %llu, \"hz\": %.6g}\n", n_lanes, n_frames, total);
  else if (!status)
    fprintf(stderr, "lanes %d, frames %llu, %.4g frames/s\n", n_lanes, n_frames, total);
  source_close(&frames);
  free(values);
  free(races);
  free(threads);
  return status;
}

/* ------------------------------------------------------------------ verify */

static double half_to_double(uint16_t half) {
  int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                                : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
  return half & 0x8000 ? -value : value;
}

/* Element `at` as a number; complex values are pairs of float32. */
static double element(const char *type, const char *values, size_t at) {
#define READ(name, kind)                                \
  if (strcmp(type, name) == 0) {                        \
    kind value;                                         \
    memcpy(&value, values + at * sizeof value, sizeof value); \
    return (double)value;                               \
  }
  READ("float32", float)
  READ("complex64", float)
  READ("float64", double)
  READ("int8", int8_t)
  READ("uint8", uint8_t)
  READ("bool", uint8_t)
  READ("int16", int16_t)
  READ("uint16", uint16_t)
  READ("int32", int32_t)
  READ("uint32", uint32_t)
  READ("int64", int64_t)
  READ("uint64", uint64_t)
#undef READ
  uint16_t half;
  memcpy(&half, values + at * 2, 2);
  return half_to_double(half);
}

/* Largest absolute difference; not-a-number equals itself only. */
static double largest_difference(const lrt_port *tensor, const char *ours, const char *theirs) {
  size_t size = lrt_type_bytes(tensor->type);
  if (strcmp(tensor->type, "complex64") == 0) size = 4;
  double worst = 0;
  for (size_t at = 0; at < tensor->n_bytes / size; at++) {
    if (memcmp(ours + at * size, theirs + at * size, size) == 0) continue;
    double a = element(tensor->type, ours, at), b = element(tensor->type, theirs, at);
    if (a == b || (isnan(a) && isnan(b))) continue;
    double gap = fabs(a - b);
    if (isnan(gap)) gap = INFINITY;
    if (gap > worst) worst = gap;
  }
  return worst;
}

static int verify_lane(bundle *of, int number, source *inputs, source *expected, double *worst) {
  pl_lane *lane = of->lanes[number];
  const plan_ports *takes = &of->plan->inputs, *gives = &of->plan->outputs;
  void **outputs = make_outputs(gives);
  uint64_t pushed = 0, pulled = 0;
  if (!outputs || pl_start(lane)) return -1;
  while (pulled < inputs->n_frames) {
    if (pushed < inputs->n_frames) {
      source_frame(inputs, takes, pushed);
      int taken = pl_push(lane, inputs->values, 0);
      if (taken < 0) break;
      pushed += (uint64_t)taken;
    }
    int came = pl_pull(lane, outputs, pushed < inputs->n_frames ? 0 : -1);
    if (came < 0) break;
    if (!came) continue;
    for (int at = 0; at < gives->n; at++) {
      const lrt_port *tensor = &gives->items[at].tensor;
      const char *theirs = expected->files[at].values + pulled * tensor->n_bytes;
      worst[at] = fmax(worst[at], largest_difference(tensor, outputs[at], theirs));
    }
    pulled++;
  }
  pl_end(lane);
  int status = pl_finish(lane);
  free_outputs(outputs, gives);
  return status;
}

static int verify(bundle *of) {
  char folder[PATH_MAX], error[2048];
  source inputs = {0}, expected = {0};
  const plan_ports *gives = &of->plan->outputs;
  int faults = 0, status = 0;
  snprintf(folder, sizeof folder, "%s/reference", of->asked->bundle);
  if (source_open(&inputs, &of->plan->inputs, folder, "input", error, sizeof error) ||
      source_open(&expected, gives, folder, "output", error, sizeof error) || inputs.n_frames != expected.n_frames) {
    source_close(&inputs);
    source_close(&expected);
    return bad(error);
  }
  double *worst = calloc((size_t)gives->n + 1, sizeof *worst);
  for (int number = 0; worst && number < of->plan->n_lanes && !status; number++) {
    memset(worst, 0, (size_t)gives->n * sizeof *worst);
    if (verify_lane(of, number, &inputs, &expected, worst) || pl_check_affinity(of->lanes[number]) < 0)
      status = failed(pl_error(of->lanes[number]));
    for (int at = 0; at < gives->n && !status; at++) {
      int fine = worst[at] <= of->plan->tolerances[at];
      faults += !fine;
      fprintf(stderr, "lane %d, output '%s': %s: off by up to %.3g on %llu frames, allowed %.3g\n", number,
              gives->items[at].tensor.name, fine ? "equal" : "DIFFERENT", worst[at],
              (unsigned long long)inputs.n_frames, of->plan->tolerances[at]);
    }
  }
  if (!status && faults) {
    snprintf(error, sizeof error, "%d outputs differ from the reference by more than their tolerance", faults);
    status = failed(error);
  }
  if (!status && of->asked->json)
    printf("{\"verified\": true, \"lanes\": %d, \"frames\": %llu}\n", of->plan->n_lanes,
           (unsigned long long)inputs.n_frames);
  else if (!status)
    fprintf(stderr, "verified, lanes %d, frames %llu\n", of->plan->n_lanes, (unsigned long long)inputs.n_frames);
  free(worst);
  source_close(&inputs);
  source_close(&expected);
  return status;
}

/* ------------------------------------------------------------------ streams */

/* Frames of one source through one or more lanes, delivered in order.  Each lane has a thread that
 * takes its outputs into a window; a lock is held for a moment per frame, never while a stage runs. */
typedef struct stream {
  bundle *of;
  int first_lane, n_lanes;
  source from;
  sink to;
  pthread_mutex_t lock;
  pthread_cond_t change;
  uint64_t fed, delivered, window;
  int *credit;        /* frames that a lane may still take */
  int *home;          /* lane of each frame in the window */
  void ***outputs;    /* of each frame in the window */
  char *ready;
  int fed_all, failed, bad_input;
  char error[2048];
  pthread_t feeder, *collectors;
  int64_t first_ns, last_ns;
} stream;

typedef struct {
  stream *of;
  int lane;
} collector;

static void stream_fail(stream *self, int bad_input, const char *text) {
  pthread_mutex_lock(&self->lock);
  if (!self->failed) {
    self->failed = 1;
    self->bad_input = bad_input;
    snprintf(self->error, sizeof self->error, "%s", text);
  }
  pthread_cond_broadcast(&self->change);
  pthread_mutex_unlock(&self->lock);
  /* Nobody takes the frames under way any more. */
  for (int at = 0; at < self->n_lanes; at++) pl_abort(self->of->lanes[self->first_lane + at]);
}

static int freest(const stream *self) {
  int best = -1;
  for (int at = 0; at < self->n_lanes; at++)
    if (self->credit[at] > 0 && (best < 0 || self->credit[at] > self->credit[best])) best = at;
  return best;
}

static void *feed(void *context) {
  stream *self = context;
  char error[1024];
  int got = 0;
  while (!stops && (got = source_next(&self->from, &self->of->plan->inputs, error, sizeof error)) == 1) {
    pthread_mutex_lock(&self->lock);
    int lane;
    while (!self->failed && ((lane = freest(self)) < 0 || self->fed - self->delivered >= self->window))
      pthread_cond_wait(&self->change, &self->lock);
    if (self->failed) {
      pthread_mutex_unlock(&self->lock);
      break;
    }
    self->credit[lane]--;
    self->home[self->fed % self->window] = lane;
    pthread_mutex_unlock(&self->lock);
    if (pl_push(self->of->lanes[self->first_lane + lane], self->from.values, -1) < 0) {
      stream_fail(self, 0, pl_error(self->of->lanes[self->first_lane + lane]));
      break;
    }
    pthread_mutex_lock(&self->lock);
    self->fed++;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
  }
  if (got < 0) stream_fail(self, 1, error);
  for (int at = 0; at < self->n_lanes; at++) pl_end(self->of->lanes[self->first_lane + at]);
  pthread_mutex_lock(&self->lock);
  self->fed_all = 1;
  pthread_cond_broadcast(&self->change);
  pthread_mutex_unlock(&self->lock);
  return NULL;
}

static void *collect(void *context) {
  collector one = *(collector *)context;
  stream *self = one.of;
  pl_lane *lane = self->of->lanes[self->first_lane + one.lane];
  free(context);
  for (uint64_t frame = 0;; frame++) {
    pthread_mutex_lock(&self->lock);
    /* The lane's next frame is the next one that was given to it; what is delivered was not ours. */
    for (;;) {
      if (frame < self->delivered) frame = self->delivered;
      while (frame < self->fed && self->home[frame % self->window] != one.lane) frame++;
      if (self->failed || frame < self->fed || self->fed_all) break;
      pthread_cond_wait(&self->change, &self->lock);
    }
    int over = self->failed || frame >= self->fed;
    pthread_mutex_unlock(&self->lock);
    if (over) return NULL;
    if (pl_pull(lane, self->outputs[frame % self->window], -1) != 1) {
      stream_fail(self, 0, pl_error(lane));
      return NULL;
    }
    pthread_mutex_lock(&self->lock);
    self->ready[frame % self->window] = 1;
    self->credit[one.lane]++;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
  }
}

static void *deliver(void *context) {
  stream *self = context;
  const plan_ports *gives = &self->of->plan->outputs;
  for (;;) {
    pthread_mutex_lock(&self->lock);
    uint64_t at = self->delivered % self->window;
    while (!self->failed && !self->ready[at] && !(self->fed_all && self->delivered >= self->fed))
      pthread_cond_wait(&self->change, &self->lock);
    int there = self->ready[at];
    pthread_mutex_unlock(&self->lock);
    if (!there) return NULL;
    if (sink_put(&self->to, gives, self->outputs[at])) {
      stream_fail(self, 0, "the outputs can not be written");
      return NULL;
    }
    self->last_ns = now_ns();
    if (!self->first_ns) self->first_ns = self->last_ns;
    pthread_mutex_lock(&self->lock);
    self->ready[at] = 0;
    self->delivered++;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
  }
}

static int stream_prepare(stream *self, bundle *of, int number, int first_lane, int n_lanes, char *error, size_t size) {
  const options *asked = of->asked;
  self->of = of;
  self->first_lane = first_lane;
  self->n_lanes = n_lanes;
  pthread_mutex_init(&self->lock, NULL);
  pthread_cond_init(&self->change, NULL);
  if (source_open(&self->from, &of->plan->inputs, asked->frames[number], "input", error, size)) return -1;
  if (sink_open(&self->to, &of->plan->outputs, asked->n_outputs ? asked->outputs[number] : NULL, error, size)) return -1;
  self->credit = calloc((size_t)n_lanes, sizeof *self->credit);
  self->collectors = calloc((size_t)n_lanes, sizeof *self->collectors);
  for (int at = 0; self->credit && at < n_lanes; at++) {
    self->credit[at] = pl_n_slots(of->lanes[first_lane + at]);
    self->window += WINDOW * (uint64_t)self->credit[at];
  }
  self->home = calloc(self->window, sizeof *self->home);
  self->ready = calloc(self->window, 1);
  self->outputs = calloc(self->window, sizeof *self->outputs);
  if (!self->credit || !self->collectors || !self->home || !self->ready || !self->outputs)
    return snprintf(error, size, "out of memory"), -1;
  for (uint64_t at = 0; at < self->window; at++)
    if (!(self->outputs[at] = make_outputs(&of->plan->outputs))) return snprintf(error, size, "out of memory"), -1;
  return 0;
}

static int stream_run(stream *self) {
  pthread_t deliverer;
  int n_collectors = 0;
  for (int at = 0; at < self->n_lanes; at++)
    if (pl_start(self->of->lanes[self->first_lane + at])) return -1;
  if (pthread_create(&self->feeder, NULL, feed, self)) return -1;
  for (int at = 0; at < self->n_lanes; at++) {
    collector *one = malloc(sizeof *one);
    if (!one) break;
    *one = (collector){self, at};
    if (pthread_create(&self->collectors[at], NULL, collect, one)) break;
    n_collectors++;
  }
  if (n_collectors < self->n_lanes) stream_fail(self, 0, "no thread can be made");
  if (pthread_create(&deliverer, NULL, deliver, self) == 0) pthread_join(deliverer, NULL);
  pthread_join(self->feeder, NULL);
  for (int at = 0; at < n_collectors; at++) pthread_join(self->collectors[at], NULL);
  for (int at = 0; at < self->n_lanes; at++) {
    pl_lane *lane = self->of->lanes[self->first_lane + at];
    if (pl_finish(lane) || pl_check_affinity(lane) < 0) stream_fail(self, 0, pl_error(lane));
  }
  return 0;
}

static void *stream_thread(void *context) {
  stream *self = context;
  if (stream_run(self)) stream_fail(self, 0, "a lane can not be started");
  return NULL;
}

static int stream_end(stream *self, int number) {
  int status = 0;
  if (self->of && sink_close(&self->to, &self->of->plan->outputs)) status = failed("the outputs can not be written");
  if (self->failed) {
    status = self->bad_input ? bad(self->error) : failed(self->error);
  } else if (self->of) {
    double window = (double)(self->last_ns - self->first_ns);
    double hz = window > 0 && self->delivered > 1 ? (double)(self->delivered - 1) * 1e9 / window : 0;
    if (self->of->asked->json)
      printf("{\"stream\": %d, \"frames\": %llu, \"hz\": %.6g}\n", number, (unsigned long long)self->delivered, hz);
    else
      fprintf(stderr, "stream %d, frames %llu, %.4g frames/s\n", number, (unsigned long long)self->delivered, hz);
  }
  source_close(&self->from);
  for (uint64_t at = 0; self->outputs && at < self->window; at++)
    free_outputs(self->outputs[at], &self->of->plan->outputs);
  free(self->outputs);
  free(self->credit);
  free(self->collectors);
  free(self->home);
  free(self->ready);
  return status;
}

static int run_streams(bundle *of) {
  const options *asked = of->asked;
  int n = asked->n_frames, most = of->plan->stateful ? of->plan->n_lanes : 1, status = 0;
  char error[2048];
  pthread_t threads[MAX_STREAMS];
  if (n > most || (asked->n_outputs && asked->n_outputs != n)) {
    snprintf(error, sizeof error,
             "%d --frames and %d --output: this model takes at most %d (one per lane if it has state), and as many outputs",
             n, asked->n_outputs, most);
    return bad(error);
  }
  stream *streams = calloc((size_t)n, sizeof *streams);
  if (!streams) return failed("out of memory");
  for (int at = 0; at < n && !status; at++)
    if (stream_prepare(&streams[at], of, at, of->plan->stateful ? at : 0, of->plan->stateful ? 1 : of->plan->n_lanes,
                       error, sizeof error))
      status = bad(error);
  int n_threads = 0;
  for (; n_threads < n && !status; n_threads++)
    if (pthread_create(&threads[n_threads], NULL, stream_thread, &streams[n_threads])) status = failed("no thread can be made");
  for (int at = 0; at < n_threads; at++) pthread_join(threads[at], NULL);
  for (int at = 0; at < n; at++) {
    int ended = stream_end(&streams[at], at);
    if (!status) status = ended;
  }
  free(streams);
  return status;
}

/* ------------------------------------------------------------------ the bundle */

static int open_bundle(bundle *of) {
  char path[PATH_MAX], error[2048], sum[65];
  const char *folder = of->asked->bundle;
  if (check_sums(folder, of->asked->verify, error, sizeof error)) return bad(error);
  snprintf(path, sizeof path, "%s/plan.txt", folder);
  of->text = read_file(path, error, sizeof error);
  if (!of->text) return bad(error);
  of->plan = plan_read(of->text, error, sizeof error);
  if (!of->plan) return bad(error);
  snprintf(path, sizeof path, "%s/mapping.yaml", folder);
  if (sha256_file(path, sum) || strcmp(sum, of->plan->mapping) != 0)
    return bad("plan.txt does not belong to this mapping.yaml: export the bundle again");
  of->lanes = calloc((size_t)of->plan->n_lanes, sizeof *of->lanes);
  if (!of->lanes) return failed("out of memory");
  hush();
  of->runtime = lrt_load(of->asked->library, error, sizeof error);
  int status = of->runtime ? 0 : -1;
  for (int at = 0; at < of->plan->n_lanes && !status; at++) {
    of->lanes[at] = pl_open(of->runtime, of->text, folder, at, of->asked->spin_ns, error, sizeof error);
    if (!of->lanes[at]) status = -1;
  }
  speak(status);
  if (status) return failed(error);
  for (int at = 0; at < of->plan->n_lanes; at++)
    for (int number = 0; number < of->plan->lanes[at].n_stages; number++) {
      const plan_stage *stage = &of->plan->lanes[at].stages[number];
      fprintf(stderr, "lane %d: %s (%s) on cores", at, stage->name, stage->file);
      for (int core = 0; core < stage->n_cores; core++) fprintf(stderr, "%s %d", core ? "," : "", stage->cores[core]);
      fprintf(stderr, "\n");
    }
  return 0;
}

static void close_bundle(bundle *of) {
  hush();
  for (int at = 0; of->lanes && at < of->plan->n_lanes; at++) pl_close(of->lanes[at]);
  lrt_unload(of->runtime);
  free(of->lanes);
  free(of->text);
  plan_free(of->plan);
  speak(0);
}

static int read_options(int argc, char **argv, options *asked) {
  enum { VERIFY, SECONDS, FRAMES, OUTPUT, BUNDLE, LIBRARY, SPIN, JSON, HELP };
  static const struct option known[] = {{"verify", 0, NULL, VERIFY},   {"seconds", 1, NULL, SECONDS},
                                        {"frames", 1, NULL, FRAMES},   {"output", 1, NULL, OUTPUT},
                                        {"bundle", 1, NULL, BUNDLE},   {"library", 1, NULL, LIBRARY},
                                        {"spin-us", 1, NULL, SPIN},    {"json", 0, NULL, JSON},
                                        {"help", 0, NULL, HELP},       {NULL, 0, NULL, 0}};
  const char *library = getenv("LITERT_LIBRARY");
  char *end = "";
  double spin_us = 50;
  *asked = (options){.bundle = ".", .library = library && *library ? library : "libLiteRt.so", .seconds = 5};
  for (int found; (found = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
    if (found == VERIFY) asked->verify = 1;
    else if (found == SECONDS) asked->seconds = strtod(optarg, &end);
    else if (found == SPIN) spin_us = strtod(optarg, &end);
    else if (found == BUNDLE) asked->bundle = optarg;
    else if (found == LIBRARY) asked->library = optarg;
    else if (found == JSON) asked->json = 1;
    else if (found == FRAMES && asked->n_frames < MAX_STREAMS) asked->frames[asked->n_frames++] = optarg;
    else if (found == OUTPUT && asked->n_outputs < MAX_STREAMS) asked->outputs[asked->n_outputs++] = optarg;
    else if (found == HELP || found == 'h') return fputs(USAGE, stdout), -1;
    else return fputs(USAGE, stderr), BAD_INPUT;
    if (*end || asked->seconds < 0 || spin_us < 0) return bad("expected a number of at least 0");
  }
  if (optind < argc || (asked->verify && asked->n_frames) || (asked->n_outputs && !asked->n_frames))
    return fputs(USAGE, stderr), BAD_INPUT;
  asked->spin_ns = (int64_t)(spin_us * 1000);
  return 0;
}

int main(int argc, char **argv) {
  options asked;
  int status = read_options(argc, argv, &asked);
  if (status) return status < 0 ? 0 : status;
  struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: reading stops */
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  signal(SIGPIPE, SIG_IGN);
  bundle of = {.asked = &asked};
  status = open_bundle(&of);
  if (!status) status = asked.verify ? verify(&of) : asked.n_frames ? run_streams(&of) : full_speed(&of);
  close_bundle(&of);
  return status;
}
