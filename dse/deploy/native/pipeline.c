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
#include "stage_loop.h"

#define FOREVER (INT64_MAX / 4)
#define NAME_BYTES 16 /* of a thread's name, as the kernel has it */

typedef struct stage_gate gate;
typedef _Atomic int64_t atomic_time;

struct unit;

/* A stage: its part of the loop, its model and its memory. */
typedef struct node {
  struct stage_node loop;
  struct pl_lane *lane;
  struct unit *unit;
  const plan_stage *stage;
  lrt_model *model;
  char **memory;                       /* of each output: the slots, one after another */
  struct node **makers;                /* of each input, NULL: the source */
  int *maker_ports;
  struct stage_port *inputs, *outputs; /* the runtime's views of the slots */
  struct node **users;                 /* each once */
  int n_users, reads_source;
  atomic_time busy_ns;                 /* written by the stage's thread only */
} node;

enum job { JOB_BUILD, JOB_WORK, JOB_END };

/* A thread pinned to a set of cores, and its stages. */
typedef struct unit {
  gate gate;
  struct pl_lane *lane;
  pthread_t thread;
  int started;
  char name[NAME_BYTES]; /* unique in the process; threads that this one makes inherit it */
  cpu_set_t *cores;
  struct stage_node **nodes;
  int n_nodes;
  _Atomic uint32_t asked, answered; /* jobs */
  enum job job;
} unit;

struct pl_lane {
  struct stage_lane loop;
  gate room; /* whoever pushes */
  gate idle; /* whoever waits for the threads */
  lrt_runtime *runtime;
  plan *plan;
  const plan_lane *lane;
  char *folder;
  node *nodes;
  int n_nodes;
  unit *units;
  int n_units;
  struct stage_node **finals;
  node **entering;
  int n_entering;
  int n_source; /* slots */
  int n_frames; /* of them, in use by pl_run */
  char **source; /* of each input */
  node **result_makers;
  int *result_ports;
  _Atomic int stopping, aborted, failed;
  int64_t count_from_ns;
  pl_figures *figures;
  atomic_time *entered;
  int64_t entered_mask;
  int64_t pulled;
  pthread_mutex_t error_lock;
  char error[1024];
};

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
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
 * and looks once more then, as in stage_loop.c. */
static void wake(gate *where) {
  if (__atomic_load_n(&where->asleep, __ATOMIC_SEQ_CST)) stage_loop_wake(where);
}

typedef int (*condition)(void *);

/* Wait until a condition holds; 0 when the time (-1: no limit) is over before. */
static int wait_for(gate *where, condition holds, void *context, int64_t timeout_ns) {
  int64_t begin = now_ns();
  while (!holds(context)) {
    struct timespec left, *limit = NULL;
    if (timeout_ns >= 0) {
      int64_t rest = begin + timeout_ns - now_ns();
      if (rest <= 0) return 0;
      left.tv_sec = (time_t)(rest / 1000000000);
      left.tv_nsec = (long)(rest % 1000000000);
      limit = &left;
    }
    uint32_t seen = __atomic_load_n(&where->tick, __ATOMIC_SEQ_CST);
    __atomic_store_n(&where->asleep, 1, __ATOMIC_SEQ_CST);
    if (!holds(context)) syscall(SYS_futex, &where->tick, FUTEX_WAIT_PRIVATE, seen, limit, NULL, 0);
    __atomic_store_n(&where->asleep, 0, __ATOMIC_SEQ_CST);
  }
  return 1;
}

static void wake_all(pl_lane *lane) {
  for (int at = 0; at < lane->n_units; at++) stage_loop_wake(&lane->units[at].gate);
  stage_loop_wake(&lane->loop.sink);
  stage_loop_wake(&lane->room);
  stage_loop_wake(&lane->idle);
}

/* ------------------------------------------------------------------ the stages' work */

static char *slot_of(char *memory, size_t n_bytes, int64_t slot) { return memory + (size_t)slot * lrt_padded(n_bytes); }

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

static void count(pl_lane *lane, int64_t frame, int64_t now) {
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

/* What the loop calls for a stage's next frame. */
static int run_stage(void *model, size_t signature, size_t n_inputs, void **inputs, size_t n_outputs, void **outputs) {
  node *self = model;
  pl_lane *lane = self->lane;
  int64_t frame = self->loop.done.value; /* written by this thread only */
  int64_t begun = now_ns();
  (void)signature, (void)n_inputs, (void)n_outputs;
  if (lane->n_entering && self == lane->entering[0])
    atomic_store_explicit(&lane->entered[frame & lane->entered_mask], begun, memory_order_relaxed);
  int status = lrt_run(self->model, inputs, outputs);
  int64_t ended = now_ns();
  int64_t busy = atomic_load_explicit(&self->busy_ns, memory_order_relaxed);
  atomic_store_explicit(&self->busy_ns, busy + (ended - begun), memory_order_relaxed);
  if (&self->loop == lane->finals[lane->loop.n_finals - 1]) count(lane, frame, ended);
  return status;
}

static void work(unit *self) {
  pl_lane *lane = self->lane;
  struct stage_failure failure;
  if (stage_loop_work(&lane->loop, self->nodes, self->n_nodes, &self->gate, &failure) == 0) return;
  fail(lane, "%s failed on frame %lld: status %lld of the runtime", lane->nodes[failure.stage].stage->name,
       (long long)failure.frame, (long long)failure.status);
  stage_loop_set(&lane->loop.stopped, 1);
  wake_all(lane);
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
  self->model = lrt_compile(lane->runtime, path, stage->threads, stage->kernels, ports, n_takes, ports + n_takes,
                            n_gives, reason, sizeof reason);
  free(ports);
  if (!self->model) {
    fail(lane, "%s: %s", stage->name, reason);
    return -1;
  }
  for (int at = 0; at < n_takes; at++) {
    const node *maker = self->makers[at];
    char *memory = maker ? maker->memory[self->maker_ports[at]] : lane->source[self->maker_ports[at]];
    int64_t n_slots = maker ? maker->loop.n_slots : lane->n_source;
    void **handles = (void **)self->inputs[at].handles;
    for (int64_t slot = 0; slot < n_slots; slot++) {
      char *piece = slot_of(memory, stage->takes.items[at].tensor.n_bytes, slot);
      if (!(handles[slot] = lrt_wrap_input(self->model, at, piece, reason, sizeof reason))) goto wrapping;
    }
  }
  for (int at = 0; at < n_gives; at++) {
    void **handles = (void **)self->outputs[at].handles;
    for (int64_t slot = 0; slot < self->loop.n_slots; slot++) {
      char *piece = slot_of(self->memory[at], stage->gives.items[at].tensor.n_bytes, slot);
      if (!(handles[slot] = lrt_wrap_output(self->model, at, piece, reason, sizeof reason))) goto wrapping;
    }
  }
  return 0;
wrapping:
  fail(lane, "%s: %s", stage->name, reason);
  return -1;
}

/* A unit's stage: the loop's part of a node comes first in it. */
static node *stage_of(const unit *self, int number) { return (node *)self->nodes[number]; }

static int pin(unit *self) {
  static _Atomic unsigned n_units;
  snprintf(self->name, sizeof self->name, "pl-%08x", atomic_fetch_add(&n_units, 1));
  prctl(PR_SET_NAME, self->name, 0, 0, 0);
  if (sched_setaffinity(0, sizeof *self->cores, self->cores)) {
    fail(self->lane, "%s: the kernel does not let a thread run on its cores: %s", stage_of(self, 0)->stage->name,
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
    wait_for(&self->gate, asked, self, -1);
    enum job job = self->job;
    if (job == JOB_BUILD && pinned == 0) {
      for (int at = 0; at < self->n_nodes; at++)
        if (compile(self->lane, stage_of(self, at))) break;
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
  return wait_for(&lane->idle, answered, lane, timeout_ns);
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
             stage_of(home, 0)->stage->name, (int)tid);
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
  if (posix_memalign(&memory, LRT_ALIGNMENT, (n ? n : 1) * size)) return NULL;
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

static void add_counter(struct stage_counter *const *list, int64_t *n, struct stage_counter *one) {
  for (int64_t at = 0; at < *n; at++)
    if (list[at] == one) return;
  ((struct stage_counter **)list)[(*n)++] = one;
}

static void add_wake(struct stage_gate *const *list, int64_t *n, gate *one) {
  for (int64_t at = 0; at < *n; at++)
    if (list[at] == one) return;
  ((struct stage_gate **)list)[(*n)++] = one;
}

/* Allocate a stage's memory and lists, and join it to the stages before it. */
static int connect_node(pl_lane *lane, int number) {
  node *self = &lane->nodes[number];
  const plan_stage *stage = &lane->lane->stages[number];
  size_t n = (size_t)lane->n_nodes, n_takes = (size_t)stage->takes.n, n_gives = (size_t)stage->gives.n;
  self->lane = lane;
  self->stage = stage;
  self->users = zeroed(n, sizeof *self->users);
  self->makers = zeroed(n_takes, sizeof *self->makers);
  self->maker_ports = zeroed(n_takes, sizeof *self->maker_ports);
  self->memory = zeroed(n_gives, sizeof *self->memory);
  self->inputs = zeroed(n_takes, sizeof *self->inputs);
  self->outputs = zeroed(n_gives, sizeof *self->outputs);
  self->loop.index = number;
  self->loop.model = self;
  self->loop.n_inputs = (int64_t)n_takes;
  self->loop.n_outputs = (int64_t)n_gives;
  self->loop.inputs = self->inputs;
  self->loop.outputs = self->outputs;
  self->loop.input_handles = zeroed(n_takes, sizeof *self->loop.input_handles);
  self->loop.output_handles = zeroed(n_gives, sizeof *self->loop.output_handles);
  self->loop.sources = zeroed(n + 1, sizeof *self->loop.sources);
  self->loop.users = zeroed(n + 1, sizeof *self->loop.users);
  self->loop.wake_done = zeroed(n + 2, sizeof *self->loop.wake_done);
  self->loop.wake_entering = zeroed(n, sizeof *self->loop.wake_entering);
  if (!self->users || !self->makers || !self->maker_ports || !self->memory || !self->inputs || !self->outputs ||
      !self->loop.input_handles || !self->loop.output_handles || !self->loop.sources || !self->loop.users ||
      !self->loop.wake_done || !self->loop.wake_entering)
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
      add_counter(self->loop.sources, &self->loop.n_sources, &lane->nodes[source].loop.done);
      add_once(lane->nodes[source].users, &lane->nodes[source].n_users, self);
    }
  }
  if (self->reads_source) add_counter(self->loop.sources, &self->loop.n_sources, &lane->loop.available);
  self->loop.enters = self->reads_source;
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
    self->loop.is_final = self->n_users == 0 || is_output(lane, self->stage);
    for (int user = 0; user < self->n_users; user++) {
      int far = level_of(lane->lane, (int)self->users[user]->loop.index) - level;
      if (far > distance) distance = far;
    }
    if (self->loop.is_final && 1 + deepest - level > distance) distance = 1 + deepest - level;
    self->loop.n_slots = depth * distance + 2;
    total += depth * distance + 2;
    for (int user = 0; user < self->n_users; user++)
      add_counter(self->loop.users, &self->loop.n_users, &self->users[user]->loop.taken);
    if (self->loop.is_final) {
      add_counter(self->loop.users, &self->loop.n_users, &lane->loop.taken);
      lane->finals[lane->loop.n_finals++] = &self->loop;
    }
    if (self->reads_source) lane->entering[lane->n_entering++] = self;
  }
  lane->n_source = depth * (deepest + 1) + 2;
  lane->n_frames = 1;
  int64_t room = 64;
  while (room < (total + lane->n_source) * 2) room *= 2;
  lane->entered_mask = room - 1;
  lane->entered = zeroed((size_t)room, sizeof *lane->entered);
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
      size_t n_slots = (size_t)self->loop.n_slots;
      self->memory[port] = aligned(n_slots, lrt_padded(self->stage->gives.items[port].tensor.n_bytes));
      self->outputs[port].n_slots = self->loop.n_slots;
      self->outputs[port].handles = zeroed(n_slots, sizeof(void *));
      if (!self->memory[port] || !self->outputs[port].handles) return -1;
    }
    for (int port = 0; port < self->stage->takes.n; port++) {
      self->inputs[port].n_slots = self->makers[port] ? self->makers[port]->loop.n_slots : lane->n_source;
      self->inputs[port].handles = zeroed((size_t)self->inputs[port].n_slots, sizeof(void *));
      if (!self->inputs[port].handles) return -1;
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
    home->nodes[home->n_nodes++] = &lane->nodes[number].loop;
    lane->nodes[number].unit = home;
  }
  return 0;
}

/* Who may sleep until a stage has done a frame: those before it (room), after it, and beside it. */
static void arrange_wakes(pl_lane *lane) {
  for (int number = 0; number < lane->n_nodes; number++) {
    node *self = &lane->nodes[number];
    struct stage_node *loop = &self->loop;
    for (int at = 0; at < lane->n_nodes; at++) {
      node *other = &lane->nodes[at];
      int joined = loop->is_final && other->loop.is_final;
      for (int port = 0; port < self->stage->takes.n; port++) joined |= self->makers[port] == other;
      for (int user = 0; user < self->n_users; user++) joined |= self->users[user] == other;
      if (other->unit == self->unit) continue;
      if (joined) add_wake(loop->wake_done, &loop->n_wake_done, &other->unit->gate);
      if (loop->is_final && other->reads_source)
        add_wake(loop->wake_entering, &loop->n_wake_entering, &other->unit->gate);
    }
    if (loop->is_final) add_wake(loop->wake_done, &loop->n_wake_done, &lane->loop.sink);
    if (self->reads_source) add_wake(loop->wake_done, &loop->n_wake_done, &lane->room);
    /* While half of a ring is left, nobody waits for a sleeper. */
    int64_t shortest = loop->n_slots;
    for (int port = 0; port < self->stage->takes.n; port++)
      if (self->makers[port] && self->makers[port]->loop.n_slots < shortest) shortest = self->makers[port]->loop.n_slots;
    loop->patience = shortest / 2;
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
  lane->loop.spin_ns = spin_ns;
  lane->loop.run = run_stage;
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
  lane->loop.n_stages = lane->n_nodes;
  size_t n = (size_t)lane->n_nodes;
  lane->nodes = aligned(n, sizeof *lane->nodes);
  lane->units = aligned(n, sizeof *lane->units);
  lane->finals = zeroed(n, sizeof *lane->finals);
  lane->loop.finals = lane->finals;
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
  stage_loop_set(&lane->loop.stopped, 1);
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
      if (self->outputs) free((void *)self->outputs[port].handles);
    }
    for (int port = 0; self->stage && self->inputs && port < self->stage->takes.n; port++)
      free((void *)self->inputs[port].handles);
    free(self->memory);
    free(self->inputs);
    free(self->outputs);
    free(self->users);
    free(self->makers);
    free(self->maker_ports);
    free(self->loop.input_handles);
    free(self->loop.output_handles);
    free((void *)self->loop.sources);
    free((void *)self->loop.users);
    free((void *)self->loop.wake_done);
    free((void *)self->loop.wake_entering);
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

static void put(pl_lane *lane, const void *const *inputs, int64_t slot) {
  for (int at = 0; at < lane->plan->inputs.n; at++) {
    size_t n_bytes = lane->plan->inputs.items[at].tensor.n_bytes;
    memcpy(slot_of(lane->source[at], n_bytes, slot), inputs[at], n_bytes);
  }
}

int pl_set_frames(pl_lane *lane, const void *const *values, int n_frames) {
  if (n_frames < 1) return 0;
  lane->n_frames = n_frames < lane->n_source ? n_frames : lane->n_source;
  for (int frame = 0; frame < lane->n_frames; frame++)
    put(lane, values + (size_t)frame * (size_t)lane->plan->inputs.n, frame);
  return lane->n_frames;
}

/* Set all counters; `n_source` is the number of the source's slots that are in use. */
static void start_over(pl_lane *lane, int64_t available, int64_t limit, int64_t taken, int64_t n_source) {
  for (int number = 0; number < lane->n_nodes; number++) {
    node *self = &lane->nodes[number];
    stage_loop_set(&self->loop.begun, 0);
    stage_loop_set(&self->loop.taken, 0);
    stage_loop_set(&self->loop.done, 0);
    atomic_store(&self->busy_ns, 0);
    for (int port = 0; port < self->stage->takes.n; port++)
      if (!self->makers[port]) self->inputs[port].n_slots = n_source;
  }
  stage_loop_set(&lane->loop.available, available);
  stage_loop_set(&lane->loop.limit, limit);
  stage_loop_set(&lane->loop.taken, taken);
  stage_loop_set(&lane->loop.stopped, 0);
  atomic_store(&lane->stopping, 0);
  atomic_store(&lane->aborted, 0);
  lane->loop.times = NULL;
  lane->loop.in_flight = 0;
  lane->figures = NULL;
  lane->pulled = 0;
}

static void start_threads(pl_lane *lane) {
  for (int at = 0; at < lane->n_units; at++) ask(&lane->units[at], JOB_WORK);
}

int pl_warm_up(pl_lane *lane) {
  if (atomic_load(&lane->failed)) return -1;
  start_over(lane, 1, 1, FOREVER, lane->n_frames);
  start_threads(lane);
  return pl_finish(lane) || pl_check_affinity(lane) < 0 ? -1 : 0;
}

static int64_t most_begun(const pl_lane *lane) {
  int64_t most = 0;
  for (int at = 0; at < lane->n_entering; at++) {
    int64_t begun = stage_loop_get(&lane->entering[at]->loop.begun);
    if (begun > most) most = begun;
  }
  return most;
}

/* Let no further frame enter, and set the limit to the frames that have entered. */
static void stop_entering(pl_lane *lane) {
  int64_t end;
  /* A thread may just have passed its test and not yet counted: hence 2, and the second look. */
  do {
    end = most_begun(lane) + 2;
    stage_loop_set(&lane->loop.available, end);
  } while (most_begun(lane) >= end);
  if (end < stage_loop_get(&lane->loop.limit)) stage_loop_set(&lane->loop.limit, end);
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
  int64_t limit = request->max_frames ? (int64_t)request->max_frames : FOREVER;
  start_over(lane, FOREVER, limit, FOREVER, lane->n_frames);
  lane->loop.in_flight = request->in_flight;
  lane->loop.times = request->stamps;
  lane->loop.n_times = (int64_t)request->stamp_frames;
  lane->figures = figures;
  lane->count_from_ns = now_ns() + request->warm_ns;
  start_threads(lane);
  if (!wait_for(&lane->idle, stopping_or_answered, lane, request->max_ns ? request->max_ns : -1) ||
      atomic_load(&lane->stopping))
    stop_entering(lane);
  if (pl_finish(lane)) return -1;
  figures->frames = (uint64_t)stage_loop_get(&lane->loop.limit);
  return 0;
}

void pl_stop(pl_lane *lane) {
  atomic_store(&lane->stopping, 1);
  wake(&lane->idle);
}

int pl_start(pl_lane *lane) {
  if (atomic_load(&lane->failed)) return -1;
  start_over(lane, 0, FOREVER, 0, lane->n_source);
  start_threads(lane);
  return 0;
}

static int has_room(void *context) {
  pl_lane *lane = context;
  if (stage_loop_get(&lane->loop.stopped)) return 1;
  int64_t frame = stage_loop_get(&lane->loop.available);
  for (int at = 0; at < lane->n_entering; at++)
    if (stage_loop_get(&lane->entering[at]->loop.taken) + lane->n_source <= frame) return 0;
  return 1;
}

int pl_push(pl_lane *lane, const void *const *inputs, int64_t timeout_ns) {
  if (!wait_for(&lane->room, has_room, lane, timeout_ns)) return 0;
  if (stage_loop_get(&lane->loop.stopped)) return -1;
  int64_t frame = stage_loop_get(&lane->loop.available);
  put(lane, inputs, frame % lane->n_source);
  stage_loop_set(&lane->loop.available, frame + 1);
  for (int at = 0; at < lane->n_entering; at++) wake(&lane->entering[at]->unit->gate);
  return 1;
}

void pl_end(pl_lane *lane) {
  stage_loop_set(&lane->loop.limit, stage_loop_get(&lane->loop.available));
  wake_all(lane);
}

static int frame_is_out(void *context) {
  pl_lane *lane = context;
  if (stage_loop_get(&lane->loop.stopped) || lane->pulled >= stage_loop_get(&lane->loop.limit)) return 1;
  for (int64_t at = 0; at < lane->loop.n_finals; at++)
    if (stage_loop_get(&lane->finals[at]->done) <= lane->pulled) return 0;
  return 1;
}

int pl_pull(pl_lane *lane, void *const *outputs, int64_t timeout_ns) {
  if (!wait_for(&lane->loop.sink, frame_is_out, lane, timeout_ns)) return 0;
  if (stage_loop_get(&lane->loop.stopped)) return -1;
  int64_t frame = lane->pulled;
  if (frame >= stage_loop_get(&lane->loop.limit)) return 2;
  for (int at = 0; at < lane->plan->outputs.n; at++) {
    const node *maker = lane->result_makers[at];
    size_t n_bytes = lane->plan->outputs.items[at].tensor.n_bytes;
    char *memory = maker->memory[lane->result_ports[at]];
    memcpy(outputs[at], slot_of(memory, n_bytes, frame % maker->loop.n_slots), n_bytes);
  }
  lane->pulled = frame + 1;
  stage_loop_set(&lane->loop.taken, frame + 1);
  for (int64_t at = 0; at < lane->loop.n_finals; at++) wake(&((node *)lane->finals[at])->unit->gate);
  return 1;
}

void pl_abort(pl_lane *lane) {
  atomic_store(&lane->aborted, 1);
  stage_loop_set(&lane->loop.stopped, 1);
  wake_all(lane);
}

int pl_finish(pl_lane *lane) {
  wait_for_units(lane, -1);
  if (atomic_load(&lane->failed)) return -1;
  if (atomic_load(&lane->aborted)) return 0;
  int64_t limit = stage_loop_get(&lane->loop.limit);
  for (int at = 0; at < lane->n_nodes; at++) {
    int64_t done = stage_loop_get(&lane->nodes[at].loop.done);
    if (done == limit) continue;
    fail(lane, "frames were lost: %s made %lld, expected %lld", lane->nodes[at].stage->name, (long long)done,
         (long long)limit);
    return -1;
  }
  return 0;
}

int64_t pl_busy_ns(const pl_lane *lane, int stage) {
  int64_t done = stage_loop_get(&lane->nodes[stage].loop.done);
  return done ? atomic_load(&lane->nodes[stage].busy_ns) / done : 0;
}
