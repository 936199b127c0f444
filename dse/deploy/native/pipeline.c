#define _GNU_SOURCE
#include "pipeline.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "plan.h"

#define LINE 128 /* counters of different threads lie on different cache lines */
#define FOREVER (UINT64_MAX / 4)
#define NAME_BYTES 16 /* of a thread's name, as the kernel has it */

typedef _Atomic uint64_t counter;
typedef _Atomic int64_t atomic_time;

/* Where one thread sleeps; others wake it after they have changed what it waits for. */
typedef struct {
  _Alignas(LINE) _Atomic uint32_t word;
  _Atomic uint32_t sleeping;
} event;

struct unit;

/* A stage at work. */
typedef struct node {
  _Alignas(LINE) counter begun; /* written by its own thread only, like done and busy_ns */
  counter done;
  atomic_time busy_ns;
  _Alignas(LINE) int index;
  const plan_stage *stage;
  lrt_model *model;
  struct unit *unit;
  int n_slots;
  char **memory;                      /* of each output: n_slots pieces, one after another */
  struct node **sources, **users;     /* each once */
  int n_sources, n_users;
  int reads_source, is_final;
  struct node **makers;               /* of each input, NULL: the source */
  int *maker_ports;
  lrt_buffer **in_buffers, **out_buffers; /* [port][slot] */
  lrt_buffer *ins, *outs;             /* of the frame at hand */
  event **wakes;                      /* who may wait for this stage */
  int n_wakes;
} node;

enum job { JOB_BUILD, JOB_WARM_UP, JOB_WORK, JOB_END };

/* A thread pinned to a set of cores, and its stages. */
typedef struct unit {
  event gate;
  struct pl_lane *lane;
  pthread_t thread;
  int started;
  char name[NAME_BYTES]; /* unique in the process; threads that this one makes inherit it */
  cpu_set_t *cores;
  node **nodes;
  int n_nodes;
  _Atomic uint32_t asked, answered; /* jobs */
  enum job job;
} unit;

struct pl_lane {
  event sink;   /* whoever pulls */
  event room;   /* whoever pushes */
  event idle;   /* whoever waits for the threads */
  lrt_runtime *runtime;
  plan *plan;
  const plan_lane *lane;
  char *folder;
  int64_t spin_ns;
  node *nodes;
  int n_nodes;
  unit *units;
  int n_units;
  node **finals, **entering;
  int n_finals, n_entering;
  int n_source; /* slots */
  int n_frames; /* of them, in use by pl_run */
  char **source; /* of each input */
  node **result_makers;
  int *result_ports;
  /* what runs */
  counter available, limit, taken; /* frames that may enter, to be made, taken by the sink */
  _Atomic int stopped, stopping;
  int32_t in_flight;
  int repeats; /* whether source slots are frames that repeat */
  int64_t *stamps;
  uint64_t stamp_frames;
  int64_t count_from_ns;
  pl_figures *figures;
  atomic_time *entered;
  uint64_t entered_mask;
  uint64_t pulled;
  _Atomic int failed;
  pthread_mutex_t error_lock;
  char error[1024];
};

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

static void fail(pl_lane *lane, const char *form, ...) {
  va_list values;
  va_start(values, form);
  pthread_mutex_lock(&lane->error_lock);
  if (!atomic_load(&lane->failed)) vsnprintf(lane->error, sizeof lane->error, form, values);
  atomic_store(&lane->failed, 1);
  pthread_mutex_unlock(&lane->error_lock);
  va_end(values);
}

const char *pl_error(const pl_lane *lane) { return atomic_load(&lane->failed) ? lane->error : ""; }

/* ------------------------------------------------------------------ sleeping and waking */

/* Whoever changes something stores it first and looks for sleepers then; whoever sleeps says so first
 * and looks once more then.  All are sequentially consistent, so one of the two sees the other. */
static void wake(event *where) {
  if (atomic_load(&where->sleeping)) {
    atomic_fetch_add(&where->word, 1);
    syscall(SYS_futex, &where->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
  }
}

typedef int (*condition)(void *);

/* Wait until a condition holds; 0 when the time (-1: no limit) is over before. */
static int wait_for(event *where, condition holds, void *context, int64_t spin_ns, int64_t timeout_ns) {
  if (holds(context)) return 1;
  int64_t begin = now_ns();
  while (spin_ns > 0 && now_ns() - begin < spin_ns && (timeout_ns < 0 || now_ns() - begin < timeout_ns))
    for (int times = 0; times < 32; times++) {
      relax();
      if (holds(context)) return 1;
    }
  for (;;) {
    struct timespec left, *limit = NULL;
    if (timeout_ns >= 0) {
      int64_t rest = begin + timeout_ns - now_ns();
      if (rest <= 0) return holds(context);
      left.tv_sec = (time_t)(rest / 1000000000);
      left.tv_nsec = (long)(rest % 1000000000);
      limit = &left;
    }
    uint32_t seen = atomic_load(&where->word);
    atomic_store(&where->sleeping, 1);
    int there = holds(context);
    if (!there) syscall(SYS_futex, &where->word, FUTEX_WAIT_PRIVATE, seen, limit, NULL, 0);
    atomic_store(&where->sleeping, 0);
    if (there || holds(context)) return 1;
  }
}

static void wake_all(pl_lane *lane) {
  for (int at = 0; at < lane->n_units; at++) wake(&lane->units[at].gate);
  wake(&lane->sink);
  wake(&lane->room);
  wake(&lane->idle);
}

/* ------------------------------------------------------------------ the stages' work */

static int ready(const pl_lane *lane, const node *self) {
  uint64_t frame = atomic_load_explicit(&self->done, memory_order_relaxed);
  if (frame >= atomic_load(&lane->limit)) return 0;
  if (self->reads_source && atomic_load(&lane->available) <= frame) return 0;
  for (int at = 0; at < self->n_sources; at++)
    if (atomic_load(&self->sources[at]->done) <= frame) return 0;
  uint64_t room = (uint64_t)self->n_slots;
  for (int at = 0; at < self->n_users; at++)
    if (atomic_load(&self->users[at]->done) + room <= frame) return 0;
  if (self->is_final) {
    if (atomic_load(&lane->taken) + room <= frame) return 0;
    /* Outputs leave together, so a quick branch may not run ahead of a slow one. */
    for (int at = 0; at < lane->n_finals; at++)
      if (atomic_load(&lane->finals[at]->done) + room <= frame) return 0;
  }
  if (lane->in_flight > 0 && self->reads_source)
    for (int at = 0; at < lane->n_finals; at++)
      if (frame >= atomic_load(&lane->finals[at]->done) + (uint64_t)lane->in_flight) return 0;
  return 1;
}

/* The oldest frame first: it drains before new ones fill, and no stage starves. */
static node *next_node(const unit *self) {
  node *found = NULL;
  uint64_t oldest = 0;
  for (int at = 0; at < self->n_nodes; at++) {
    node *one = self->nodes[at];
    uint64_t frame = atomic_load_explicit(&one->done, memory_order_relaxed);
    if ((!found || frame < oldest) && ready(self->lane, one)) {
      found = one;
      oldest = frame;
    }
  }
  return found;
}

static int finished(const unit *self) {
  for (int at = 0; at < self->n_nodes; at++)
    if (atomic_load_explicit(&self->nodes[at]->done, memory_order_relaxed) < atomic_load(&self->lane->limit))
      return 0;
  return 1;
}

static int can_go_on(void *context) {
  const unit *self = context;
  return atomic_load(&self->lane->stopped) || next_node(self) || finished(self);
}

static char *slot_of(char *memory, size_t n_bytes, uint64_t slot) { return memory + slot * lrt_padded(n_bytes); }

static uint64_t source_slot(const pl_lane *lane, uint64_t frame) {
  return frame % (uint64_t)(lane->repeats ? lane->n_frames : lane->n_source);
}

static int bucket_of(int64_t latency_ns) {
  uint64_t value = latency_ns < 0 ? 0 : (uint64_t)latency_ns;
  if (value < 64) return (int)value;
  int shift = 63 - __builtin_clzll(value) - 5; /* so that value >> shift is 32 to 63 */
  int bucket = 32 * shift + (int)(value >> shift);
  return bucket < PL_BUCKETS ? bucket : PL_BUCKETS - 1;
}

int64_t pl_bucket_ns(int bucket) {
  if (bucket < 64) return bucket;
  int shift = bucket / 32 - 1;
  return (((int64_t)(bucket - 32 * shift) + 1) << shift) - 1;
}

static void count(pl_lane *lane, uint64_t frame, int64_t now) {
  pl_figures *figures = lane->figures;
  if (!figures || now < lane->count_from_ns) return;
  if (!figures->first_ns) {
    figures->first_ns = now;
    return;
  }
  figures->counted++;
  figures->last_ns = now;
  int64_t entered = atomic_load_explicit(&lane->entered[frame & lane->entered_mask], memory_order_relaxed);
  figures->latencies[bucket_of(now - entered)]++;
}

static void step(pl_lane *lane, node *self) {
  uint64_t frame = atomic_load_explicit(&self->done, memory_order_relaxed);
  uint64_t slot = frame % (uint64_t)self->n_slots;
  atomic_store(&self->begun, frame + 1);
  int64_t begun = now_ns();
  if (lane->n_entering && self == lane->entering[0])
    atomic_store_explicit(&lane->entered[frame & lane->entered_mask], begun, memory_order_relaxed);
  for (int at = 0; at < self->stage->takes.n; at++) {
    const node *maker = self->makers[at];
    self->ins[at] = self->in_buffers[at][maker ? frame % (uint64_t)maker->n_slots : source_slot(lane, frame)];
  }
  for (int at = 0; at < self->stage->gives.n; at++) self->outs[at] = self->out_buffers[at][slot];
  int status = lrt_run(self->model, self->ins, self->outs);
  int64_t ended = now_ns();
  if (status) {
    fail(lane, "%s failed on frame %llu: status %d of the runtime", self->stage->name, (unsigned long long)frame,
         status);
    atomic_store(&lane->stopped, 1);
    wake_all(lane);
    return;
  }
  atomic_store_explicit(&self->busy_ns,
                        atomic_load_explicit(&self->busy_ns, memory_order_relaxed) + (ended - begun),
                        memory_order_relaxed);
  if (lane->stamps && frame < lane->stamp_frames) {
    int64_t *stamps = lane->stamps + (frame * (uint64_t)lane->n_nodes + (uint64_t)self->index) * PL_TIMES;
    stamps[0] = stamps[1] = begun;
    stamps[2] = stamps[3] = ended;
  }
  if (self == lane->finals[lane->n_finals - 1]) count(lane, frame, ended);
  atomic_store(&self->done, frame + 1);
  for (int at = 0; at < self->n_wakes; at++) wake(self->wakes[at]);
}

static void work(unit *self) {
  pl_lane *lane = self->lane;
  while (!atomic_load(&lane->stopped)) {
    node *one = next_node(self);
    if (one)
      step(lane, one);
    else if (finished(self))
      return;
    else
      wait_for(&self->gate, can_go_on, self, lane->spin_ns, -1);
  }
}

/* ------------------------------------------------------------------ building */

static int compile(pl_lane *lane, node *self) {
  const plan_stage *stage = self->stage;
  char path[PATH_MAX], reason[1024];
  int n_takes = stage->takes.n, n_gives = stage->gives.n;
  lrt_port *ports = calloc((size_t)(n_takes + n_gives + 1), sizeof *ports);
  if (!ports) {
    fail(lane, "out of memory");
    return -1;
  }
  for (int at = 0; at < n_takes; at++) ports[at] = stage->takes.items[at].tensor;
  for (int at = 0; at < n_gives; at++) ports[n_takes + at] = stage->gives.items[at].tensor;
  snprintf(path, sizeof path, "%s/%s", lane->folder, stage->file);
  lrt_destroy(self->model);
  self->model = lrt_compile(lane->runtime, path, stage->threads, ports, n_takes, ports + n_takes, n_gives, reason,
                            sizeof reason);
  free(ports);
  if (!self->model) {
    fail(lane, "%s: %s", stage->name, reason);
    return -1;
  }
  for (int at = 0; at < n_takes; at++) {
    const node *maker = self->makers[at];
    int n_slots = maker ? maker->n_slots : lane->n_source;
    char *memory = maker ? maker->memory[self->maker_ports[at]] : lane->source[self->maker_ports[at]];
    for (int slot = 0; slot < n_slots; slot++) {
      char *piece = slot_of(memory, stage->takes.items[at].tensor.n_bytes, (uint64_t)slot);
      self->in_buffers[at][slot] = lrt_wrap_input(self->model, at, piece, reason, sizeof reason);
      if (!self->in_buffers[at][slot]) goto wrapping;
    }
  }
  for (int at = 0; at < n_gives; at++)
    for (int slot = 0; slot < self->n_slots; slot++) {
      char *piece = slot_of(self->memory[at], stage->gives.items[at].tensor.n_bytes, (uint64_t)slot);
      self->out_buffers[at][slot] = lrt_wrap_output(self->model, at, piece, reason, sizeof reason);
      if (!self->out_buffers[at][slot]) goto wrapping;
    }
  return 0;
wrapping:
  fail(lane, "%s: %s", stage->name, reason);
  return -1;
}

static int pin(unit *self) {
  static _Atomic unsigned n_units;
  snprintf(self->name, sizeof self->name, "pl-%08x", atomic_fetch_add(&n_units, 1));
  prctl(PR_SET_NAME, self->name, 0, 0, 0);
  if (sched_setaffinity(0, sizeof *self->cores, self->cores)) {
    fail(self->lane, "%s: the kernel does not let a thread run on its cores: %s", self->nodes[0]->stage->name,
         strerror(errno));
    return -1;
  }
  return 0;
}

static int asked(void *context) {
  const unit *self = context;
  return atomic_load(&self->asked) != atomic_load(&self->answered);
}

static void *serve(void *context) {
  unit *self = context;
  int pinned = pin(self);
  for (;;) {
    wait_for(&self->gate, asked, self, 0, -1);
    enum job job = self->job;
    if (job == JOB_BUILD && pinned == 0) {
      for (int at = 0; at < self->n_nodes; at++)
        if (compile(self->lane, self->nodes[at])) break;
    } else if (job == JOB_WARM_UP) {
      /* asked for one stage at a time, in order: see pl_warm_up */
      for (int at = 0; at < self->n_nodes; at++)
        if (ready(self->lane, self->nodes[at])) step(self->lane, self->nodes[at]);
    } else if (job == JOB_WORK) {
      work(self);
    }
    atomic_store(&self->answered, atomic_load(&self->asked));
    wake(&self->lane->idle);
    if (job == JOB_END) return NULL;
  }
}

static void ask(unit *self, enum job job) {
  self->job = job;
  atomic_fetch_add(&self->asked, 1);
  wake(&self->gate);
}

static int answered(void *context) {
  pl_lane *lane = context;
  for (int at = 0; at < lane->n_units; at++)
    if (lane->units[at].started && asked(&lane->units[at])) return 0;
  return 1;
}

static int wait_for_units(pl_lane *lane, int64_t timeout_ns) {
  return wait_for(&lane->idle, answered, lane, 0, timeout_ns);
}

static void thread_name(pid_t tid, char name[NAME_BYTES]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)tid);
  FILE *stream = fopen(path, "r");
  if (!stream || !fgets(name, NAME_BYTES, stream)) name[0] = 0;
  name[strcspn(name, "\n")] = 0;
  if (stream) fclose(stream);
}

int pl_check_affinity(pl_lane *lane) {
  DIR *tasks = opendir("/proc/self/task");
  struct dirent *entry;
  int n_threads = 0;
  while (tasks && (entry = readdir(tasks)) != NULL) {
    pid_t tid = (pid_t)atoi(entry->d_name);
    char name[NAME_BYTES];
    cpu_set_t got;
    thread_name(tid, name);
    for (int at = 0; tid && at < lane->n_units; at++) {
      const unit *home = &lane->units[at];
      if (strcmp(home->name, name) != 0 || sched_getaffinity(tid, sizeof got, &got)) continue;
      n_threads++;
      if (!CPU_EQUAL(&got, home->cores)) {
        fail(lane, "%s: thread %d may run on other cores than the stage: its mask was not kept; check cpusets",
             home->nodes[0]->stage->name, (int)tid);
        closedir(tasks);
        return -1;
      }
    }
  }
  if (tasks) closedir(tasks);
  return n_threads;
}

static void *zeroed(size_t n, size_t size) { return calloc(n ? n : 1, size); }

static void *aligned(size_t n, size_t size) {
  void *memory = NULL;
  if (posix_memalign(&memory, LINE, (n ? n : 1) * size)) return NULL;
  memset(memory, 0, (n ? n : 1) * size);
  return memory;
}

static int level_of(const plan_lane *lane, int stage) {
  int level = 0;
  for (int port = 0; port < lane->stages[stage].takes.n; port++) {
    int source = plan_source(lane, stage, port);
    int before = source < 0 ? 0 : 1 + level_of(lane, source);
    if (before > level) level = before;
  }
  return level;
}

static void add_once(node **list, int *n, node *one) {
  for (int at = 0; at < *n; at++)
    if (list[at] == one) return;
  list[(*n)++] = one;
}

static void add_wake(node *self, event *where) {
  for (int at = 0; at < self->n_wakes; at++)
    if (self->wakes[at] == where) return;
  self->wakes[self->n_wakes++] = where;
}

/* Allocate a stage's memory and lists, and join it to the stages before it. */
static int connect_node(pl_lane *lane, int number) {
  node *self = &lane->nodes[number];
  const plan_stage *stage = &lane->lane->stages[number];
  size_t n = (size_t)lane->n_nodes, n_takes = (size_t)stage->takes.n, n_gives = (size_t)stage->gives.n;
  self->index = number;
  self->stage = stage;
  self->sources = zeroed(n, sizeof *self->sources);
  self->users = zeroed(n, sizeof *self->users);
  self->makers = zeroed(n_takes, sizeof *self->makers);
  self->maker_ports = zeroed(n_takes, sizeof *self->maker_ports);
  self->memory = zeroed(n_gives, sizeof *self->memory);
  self->in_buffers = zeroed(n_takes, sizeof *self->in_buffers);
  self->out_buffers = zeroed(n_gives, sizeof *self->out_buffers);
  self->ins = zeroed(n_takes, sizeof *self->ins);
  self->outs = zeroed(n_gives, sizeof *self->outs);
  self->wakes = zeroed(2 * n + 4, sizeof *self->wakes);
  if (!self->sources || !self->users || !self->makers || !self->maker_ports || !self->memory || !self->in_buffers ||
      !self->out_buffers || !self->ins || !self->outs || !self->wakes)
    return -1;
  self->reads_source = n_takes == 0;
  for (int port = 0; port < stage->takes.n; port++) {
    long key = stage->takes.items[port].key;
    int source = plan_source(lane->lane, number, port);
    const plan_ports *home = source < 0 ? &lane->plan->inputs : &lane->lane->stages[source].gives;
    int found = -1;
    for (int at = 0; at < home->n; at++)
      if (home->items[at].key == key) found = at;
    if (found < 0 || home->items[found].tensor.n_bytes != stage->takes.items[port].tensor.n_bytes) {
      fail(lane, "plan.txt: input '%s' of %s is made by no earlier stage and is no input of the model",
           stage->takes.items[port].tensor.name, stage->name);
      return -1;
    }
    self->maker_ports[port] = found;
    if (source < 0) {
      self->reads_source = 1;
    } else {
      self->makers[port] = &lane->nodes[source];
      add_once(self->sources, &self->n_sources, &lane->nodes[source]);
      add_once(lane->nodes[source].users, &lane->nodes[source].n_users, self);
    }
  }
  return 0;
}

static int is_output(const pl_lane *lane, const plan_stage *stage) {
  for (int made = 0; made < stage->gives.n; made++)
    for (int at = 0; at < lane->plan->outputs.n; at++)
      if (lane->plan->outputs.items[at].key == stage->gives.items[made].key) return 1;
  return 0;
}

/* Lengths of rings: a tensor that skips stages waits while the frame passes them. */
static int size_rings(pl_lane *lane) {
  int depth = lane->plan->queue_depth, deepest = 0, total = 0;
  for (int at = 0; at < lane->n_nodes; at++) {
    int level = level_of(lane->lane, at);
    if (level > deepest) deepest = level;
  }
  for (int at = 0; at < lane->n_nodes; at++) {
    node *self = &lane->nodes[at];
    int level = level_of(lane->lane, at), distance = 1;
    self->is_final = self->n_users == 0 || is_output(lane, self->stage);
    for (int user = 0; user < self->n_users; user++) {
      int far = level_of(lane->lane, self->users[user]->index) - level;
      if (far > distance) distance = far;
    }
    if (self->is_final && 1 + deepest - level > distance) distance = 1 + deepest - level;
    self->n_slots = depth * distance + 2;
    total += self->n_slots;
    if (self->is_final) lane->finals[lane->n_finals++] = self;
    if (self->reads_source) lane->entering[lane->n_entering++] = self;
  }
  lane->n_source = depth * (deepest + 1) + 2;
  lane->n_frames = 1;
  uint64_t room = 64;
  while (room < (uint64_t)(total + lane->n_source) * 2) room *= 2;
  lane->entered_mask = room - 1;
  lane->entered = zeroed(room, sizeof *lane->entered);
  return lane->entered ? 0 : -1;
}

static int allocate_slots(pl_lane *lane) {
  for (int at = 0; at < lane->plan->inputs.n; at++) {
    lane->source[at] = aligned((size_t)lane->n_source, lrt_padded(lane->plan->inputs.items[at].tensor.n_bytes));
    if (!lane->source[at]) return -1;
  }
  for (int number = 0; number < lane->n_nodes; number++) {
    node *self = &lane->nodes[number];
    for (int port = 0; port < self->stage->gives.n; port++) {
      size_t piece = lrt_padded(self->stage->gives.items[port].tensor.n_bytes);
      self->memory[port] = aligned((size_t)self->n_slots, piece);
      self->out_buffers[port] = zeroed((size_t)self->n_slots, sizeof **self->out_buffers);
      if (!self->memory[port] || !self->out_buffers[port]) return -1;
    }
    for (int port = 0; port < self->stage->takes.n; port++) {
      int n_slots = self->makers[port] ? self->makers[port]->n_slots : lane->n_source;
      self->in_buffers[port] = zeroed((size_t)n_slots, sizeof **self->in_buffers);
      if (!self->in_buffers[port]) return -1;
    }
  }
  return 0;
}

/* Where the model's outputs lie: with the last stage that makes them, or they are inputs. */
static int find_results(pl_lane *lane) {
  for (int at = 0; at < lane->plan->outputs.n; at++) {
    long key = lane->plan->outputs.items[at].key;
    int port = -1;
    for (int number = 0; number < lane->n_nodes; number++)
      for (int made = 0; made < lane->nodes[number].stage->gives.n; made++)
        if (lane->nodes[number].stage->gives.items[made].key == key) {
          lane->result_makers[at] = &lane->nodes[number];
          port = made;
        }
    if (port < 0) {
      fail(lane, "plan.txt: no stage makes the model's output '%s'", lane->plan->outputs.items[at].tensor.name);
      return -1;
    }
    lane->result_ports[at] = port;
  }
  return 0;
}

static int make_units(pl_lane *lane) {
  for (int number = 0; number < lane->n_nodes; number++) {
    const plan_stage *stage = lane->nodes[number].stage;
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (int at = 0; at < stage->n_cores; at++) CPU_SET((size_t)stage->cores[at], &wanted);
    unit *home = NULL;
    for (int at = 0; at < lane->n_units; at++)
      if (CPU_EQUAL(&wanted, lane->units[at].cores)) home = &lane->units[at];
    if (!home) {
      home = &lane->units[lane->n_units++];
      home->lane = lane;
      home->cores = zeroed(1, sizeof *home->cores);
      home->nodes = zeroed((size_t)lane->n_nodes, sizeof *home->nodes);
      if (!home->cores || !home->nodes) return -1;
      *home->cores = wanted;
    }
    home->nodes[home->n_nodes++] = &lane->nodes[number];
    lane->nodes[number].unit = home;
  }
  return 0;
}

/* Who may sleep until a stage has done a frame: those before it (room), after it, and beside it. */
static void arrange_wakes(pl_lane *lane) {
  for (int number = 0; number < lane->n_nodes; number++) {
    node *self = &lane->nodes[number];
    for (int at = 0; at < lane->n_nodes; at++) {
      node *other = &lane->nodes[at];
      int joined = 0;
      for (int s = 0; s < self->n_sources; s++) joined |= self->sources[s] == other;
      for (int u = 0; u < self->n_users; u++) joined |= self->users[u] == other;
      /* A final stage holds back the other finals, and with a limit of frames those that enter. */
      joined |= self->is_final && (other->is_final || other->reads_source);
      if (joined && other->unit != self->unit) add_wake(self, &other->unit->gate);
    }
    if (self->is_final) add_wake(self, &lane->sink);
    if (self->reads_source) add_wake(self, &lane->room);
  }
}

static int build(pl_lane *lane) {
  for (int at = 0; at < lane->n_nodes; at++)
    if (connect_node(lane, at)) return -1;
  if (size_rings(lane) || allocate_slots(lane) || find_results(lane) || make_units(lane)) return -1;
  arrange_wakes(lane);
  for (int at = 0; at < lane->n_units; at++) {
    unit *home = &lane->units[at];
    if (pthread_create(&home->thread, NULL, serve, home)) {
      fail(lane, "no thread can be made");
      return -1;
    }
    home->started = 1;
    ask(home, JOB_BUILD);
    wait_for_units(lane, -1);
    if (atomic_load(&lane->failed)) return -1;
  }
  return pl_check_affinity(lane) < 0 ? -1 : 0;
}

pl_lane *pl_open(lrt_runtime *runtime, const char *plan_text, const char *folder, int number, int64_t spin_ns,
                 char *error, size_t error_size) {
  pl_lane *lane = aligned(1, sizeof *lane);
  if (!lane) {
    snprintf(error, error_size, "out of memory");
    return NULL;
  }
  pthread_mutex_init(&lane->error_lock, NULL);
  lane->runtime = runtime;
  lane->spin_ns = spin_ns;
  lane->folder = strdup(folder);
  lane->plan = plan_read(plan_text, error, error_size);
  if (!lane->plan) {
    pl_close(lane);
    return NULL;
  }
  if (number < 0 || number >= lane->plan->n_lanes) {
    snprintf(error, error_size, "plan.txt has lanes 0 to %d, not %d", lane->plan->n_lanes - 1, number);
    pl_close(lane);
    return NULL;
  }
  lane->lane = &lane->plan->lanes[number];
  lane->n_nodes = lane->lane->n_stages;
  size_t n = (size_t)lane->n_nodes;
  lane->nodes = aligned(n, sizeof *lane->nodes);
  lane->units = aligned(n, sizeof *lane->units);
  lane->finals = zeroed(n, sizeof *lane->finals);
  lane->entering = zeroed(n, sizeof *lane->entering);
  lane->source = zeroed((size_t)lane->plan->inputs.n, sizeof *lane->source);
  lane->result_makers = zeroed((size_t)lane->plan->outputs.n, sizeof *lane->result_makers);
  lane->result_ports = zeroed((size_t)lane->plan->outputs.n, sizeof *lane->result_ports);
  if (!lane->folder || !lane->nodes || !lane->units || !lane->finals || !lane->entering || !lane->source ||
      !lane->result_makers || !lane->result_ports || build(lane)) {
    fail(lane, "out of memory");
    snprintf(error, error_size, "%s", lane->error);
    pl_close(lane);
    return NULL;
  }
  return lane;
}

void pl_close(pl_lane *lane) {
  if (!lane) return;
  atomic_store(&lane->stopped, 1);
  wake_all(lane);
  for (int at = 0; at < lane->n_units; at++)
    if (lane->units[at].started) {
      wait_for_units(lane, -1);
      ask(&lane->units[at], JOB_END);
      pthread_join(lane->units[at].thread, NULL);
      lane->units[at].started = 0;
    }
  for (int at = 0; lane->nodes && at < lane->n_nodes; at++) lrt_destroy(lane->nodes[at].model);
  for (int at = 0; lane->nodes && at < lane->n_nodes; at++) {
    node *self = &lane->nodes[at];
    for (int port = 0; self->stage && port < self->stage->gives.n; port++) {
      if (self->memory) free(self->memory[port]);
      if (self->out_buffers) free(self->out_buffers[port]);
    }
    for (int port = 0; self->stage && self->in_buffers && port < self->stage->takes.n; port++)
      free(self->in_buffers[port]);
    free(self->memory);
    free(self->out_buffers);
    free(self->in_buffers);
    free(self->sources);
    free(self->users);
    free(self->makers);
    free(self->maker_ports);
    free(self->ins);
    free(self->outs);
    free(self->wakes);
  }
  for (int at = 0; lane->units && at < lane->n_units; at++) {
    free(lane->units[at].cores);
    free(lane->units[at].nodes);
  }
  for (int at = 0; lane->source && at < lane->plan->inputs.n; at++) free(lane->source[at]);
  free(lane->source);
  free(lane->nodes);
  free(lane->units);
  free(lane->finals);
  free(lane->entering);
  free(lane->result_makers);
  free(lane->result_ports);
  free(lane->entered);
  free(lane->folder);
  plan_free(lane->plan);
  pthread_mutex_destroy(&lane->error_lock);
  free(lane);
}

int pl_n_stages(const pl_lane *lane) { return lane->n_nodes; }
int pl_n_inputs(const pl_lane *lane) { return lane->plan->inputs.n; }
int pl_n_outputs(const pl_lane *lane) { return lane->plan->outputs.n; }
int pl_n_slots(const pl_lane *lane) { return lane->n_source; }

int pl_reset(pl_lane *lane) {
  for (int at = 0; at < lane->n_units; at++) {
    ask(&lane->units[at], JOB_BUILD);
    wait_for_units(lane, -1);
    if (atomic_load(&lane->failed)) return -1;
  }
  return pl_check_affinity(lane) < 0 ? -1 : 0;
}

/* ------------------------------------------------------------------ running */

static void put(pl_lane *lane, const void *const *inputs, uint64_t slot) {
  for (int at = 0; at < lane->plan->inputs.n; at++) {
    size_t n_bytes = lane->plan->inputs.items[at].tensor.n_bytes;
    memcpy(slot_of(lane->source[at], n_bytes, slot), inputs[at], n_bytes);
  }
}

int pl_set_frames(pl_lane *lane, const void *const *values, int n_frames) {
  if (n_frames < 1) return 0;
  lane->n_frames = n_frames < lane->n_source ? n_frames : lane->n_source;
  for (int frame = 0; frame < lane->n_frames; frame++)
    put(lane, values + (size_t)frame * (size_t)lane->plan->inputs.n, (uint64_t)frame);
  return lane->n_frames;
}

static void start_over(pl_lane *lane, uint64_t available, uint64_t limit, uint64_t taken) {
  for (int at = 0; at < lane->n_nodes; at++) {
    atomic_store(&lane->nodes[at].begun, 0);
    atomic_store(&lane->nodes[at].done, 0);
    atomic_store(&lane->nodes[at].busy_ns, 0);
  }
  atomic_store(&lane->available, available);
  atomic_store(&lane->limit, limit);
  atomic_store(&lane->taken, taken);
  atomic_store(&lane->stopped, 0);
  atomic_store(&lane->stopping, 0);
  lane->figures = NULL;
  lane->stamps = NULL;
  lane->in_flight = 0;
  lane->pulled = 0;
}

int pl_warm_up(pl_lane *lane) {
  if (atomic_load(&lane->failed)) return -1;
  start_over(lane, 1, 1, FOREVER);
  lane->repeats = 1;
  /* One unit at a time, again and again: stages of a unit may need those of another in between. */
  for (int turn = 0; turn < lane->n_nodes; turn++)
    for (int at = 0; at < lane->n_units; at++) {
      ask(&lane->units[at], JOB_WARM_UP);
      wait_for_units(lane, -1);
        if (atomic_load(&lane->failed)) return -1;
    }
  return pl_check_affinity(lane) < 0 ? -1 : 0;
}

/* Let no further frame enter, and set the limit to the frames that have entered. */
static void stop_entering(pl_lane *lane) {
  uint64_t end, most;
  /* A thread may just have passed its test and not yet counted: hence 2, and the second look. */
  do {
    most = 0;
    for (int at = 0; at < lane->n_entering; at++) {
      uint64_t begun = atomic_load(&lane->entering[at]->begun);
      if (begun > most) most = begun;
    }
    end = most + 2;
    atomic_store(&lane->available, end);
    most = 0;
    for (int at = 0; at < lane->n_entering; at++) {
      uint64_t begun = atomic_load(&lane->entering[at]->begun);
      if (begun > most) most = begun;
    }
  } while (most >= end);
  if (end < atomic_load(&lane->limit)) atomic_store(&lane->limit, end);
  wake_all(lane);
}

static int stopping_or_answered(void *context) {
  pl_lane *lane = context;
  return atomic_load(&lane->stopping) || answered(context);
}

int pl_run(pl_lane *lane, const pl_request *request, pl_figures *figures) {
  if (atomic_load(&lane->failed)) return -1;
  memset(figures, 0, sizeof *figures);
  int64_t left;
  while (request->start_ns && (left = request->start_ns - now_ns()) > 0) {
    struct timespec pause = {(time_t)(left / 1000000000), (long)(left % 1000000000)};
    nanosleep(&pause, NULL);
  }
  start_over(lane, FOREVER, request->max_frames ? request->max_frames : FOREVER, FOREVER);
  lane->repeats = 1;
  lane->in_flight = request->in_flight;
  lane->stamps = request->stamps;
  lane->stamp_frames = request->stamp_frames;
  lane->figures = figures;
  lane->count_from_ns = now_ns() + request->warm_ns;
  for (int at = 0; at < lane->n_units; at++) ask(&lane->units[at], JOB_WORK);
  if (!wait_for(&lane->idle, stopping_or_answered, lane, 0, request->max_ns ? request->max_ns : -1) ||
      atomic_load(&lane->stopping))
    stop_entering(lane);
  return pl_finish(lane) ? -1 : (figures->frames = atomic_load(&lane->finals[0]->done), 0);
}

void pl_stop(pl_lane *lane) {
  atomic_store(&lane->stopping, 1);
  wake(&lane->idle);
}

int pl_start(pl_lane *lane) {
  if (atomic_load(&lane->failed)) return -1;
  start_over(lane, 0, FOREVER, 0);
  lane->repeats = 0;
  for (int at = 0; at < lane->n_units; at++) ask(&lane->units[at], JOB_WORK);
  return 0;
}

static int has_room(void *context) {
  pl_lane *lane = context;
  if (atomic_load(&lane->stopped)) return 1;
  uint64_t frame = atomic_load_explicit(&lane->available, memory_order_relaxed);
  for (int at = 0; at < lane->n_entering; at++)
    if (atomic_load(&lane->entering[at]->done) + (uint64_t)lane->n_source <= frame) return 0;
  return 1;
}

int pl_push(pl_lane *lane, const void *const *inputs, int64_t timeout_ns) {
  if (!wait_for(&lane->room, has_room, lane, timeout_ns ? lane->spin_ns : 0, timeout_ns)) return 0;
  if (atomic_load(&lane->failed)) return -1;
  uint64_t frame = atomic_load_explicit(&lane->available, memory_order_relaxed);
  put(lane, inputs, frame % (uint64_t)lane->n_source);
  atomic_store(&lane->available, frame + 1);
  for (int at = 0; at < lane->n_entering; at++) wake(&lane->entering[at]->unit->gate);
  return 1;
}

void pl_end(pl_lane *lane) {
  atomic_store(&lane->limit, atomic_load(&lane->available));
  wake_all(lane);
}

static int frame_is_out(void *context) {
  pl_lane *lane = context;
  if (atomic_load(&lane->stopped) || lane->pulled >= atomic_load(&lane->limit)) return 1;
  for (int at = 0; at < lane->n_finals; at++)
    if (atomic_load(&lane->finals[at]->done) <= lane->pulled) return 0;
  return 1;
}

int pl_pull(pl_lane *lane, void *const *outputs, int64_t timeout_ns) {
  if (!wait_for(&lane->sink, frame_is_out, lane, timeout_ns ? lane->spin_ns : 0, timeout_ns)) return 0;
  if (atomic_load(&lane->failed)) return -1;
  uint64_t frame = lane->pulled;
  if (frame >= atomic_load(&lane->limit)) return 2;
  for (int at = 0; at < lane->plan->outputs.n; at++) {
    const node *maker = lane->result_makers[at];
    size_t n_bytes = lane->plan->outputs.items[at].tensor.n_bytes;
    char *memory = maker->memory[lane->result_ports[at]];
    memcpy(outputs[at], slot_of(memory, n_bytes, frame % (uint64_t)maker->n_slots), n_bytes);
  }
  lane->pulled = frame + 1;
  atomic_store(&lane->taken, frame + 1);
  for (int at = 0; at < lane->n_finals; at++) wake(&lane->finals[at]->unit->gate);
  return 1;
}

int pl_finish(pl_lane *lane) {
  wait_for_units(lane, -1);
  if (atomic_load(&lane->failed)) return -1;
  for (int at = 0; at < lane->n_nodes; at++)
    if (atomic_load(&lane->nodes[at].done) != atomic_load(&lane->limit)) {
      fail(lane, "frames were lost: %s made %llu, expected %llu", lane->nodes[at].stage->name,
           (unsigned long long)atomic_load(&lane->nodes[at].done), (unsigned long long)atomic_load(&lane->limit));
      return -1;
    }
  return 0;
}

int64_t pl_busy_ns(const pl_lane *lane, int stage) {
  uint64_t done = atomic_load(&lane->nodes[stage].done);
  return done ? atomic_load(&lane->nodes[stage].busy_ns) / (int64_t)done : 0;
}
