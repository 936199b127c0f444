#define _GNU_SOURCE
#include "plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FIELDS 8
#define MAX_CORES 1024

static int number(const char *text, long low, long high, long *value) {
  char *end;
  errno = 0;
  *value = strtol(text, &end, 10);
  return *text && !*end && !errno && *value >= low && *value <= high ? 0 : -1;
}

/* %XX is a byte, a lone % is nothing. */
static char *unescape(const char *field) {
  char *made = malloc(strlen(field) + 1), *to = made;
  if (!made) return NULL;
  if (strcmp(field, "%") == 0) field = "";
  for (; *field; field++) {
    unsigned byte;
    if (*field == '%' && sscanf(field + 1, "%2X", &byte) == 1 && field[1] && field[2]) {
      *to++ = (char)byte;
      field += 2;
    } else {
      *to++ = *field;
    }
  }
  *to = 0;
  return made;
}

/* Make room for one more; the new item is zero. */
static void *grow(void *items, int n, size_t size) {
  char *more = realloc(items, ((size_t)n + 1) * size);
  if (more) memset(more + (size_t)n * size, 0, size);
  return more;
}

static int read_port(char **fields, int n_fields, plan_ports *home) {
  long value, size;
  if (n_fields != 5) return -1;
  plan_port *more = grow(home->items, home->n, sizeof *more);
  if (!more) return -1;
  home->items = more;
  plan_port *port = &more[home->n++];
  lrt_port *tensor = &port->tensor;
  tensor->type = unescape(fields[1]);
  tensor->name = unescape(fields[4]);
  if (!tensor->type || !tensor->name || number(fields[0], 0, 1L << 30, &port->key)) return -1;
  if (number(fields[3], 0, 1L << 40, &value)) return -1;
  tensor->n_bytes = (size_t)value;
  size_t total = lrt_type_bytes(tensor->type);
  if (strcmp(fields[2], "-") != 0) {
    char *rest = NULL;
    for (char *part = strtok_r(fields[2], "x", &rest); part; part = strtok_r(NULL, "x", &rest)) {
      if (tensor->rank == LRT_MAX_RANK || number(part, 0, INT32_MAX, &size)) return -1;
      tensor->shape[tensor->rank++] = (int32_t)size;
      if (__builtin_mul_overflow(total, (size_t)size, &total)) return -1;
    }
  }
  return total == tensor->n_bytes && lrt_type_bytes(tensor->type) ? 0 : -1;
}

static int read_stage(char **fields, int n_fields, plan_lane *lane) {
  long value;
  if (n_fields != 5) return -1;
  plan_stage *more = grow(lane->stages, lane->n_stages, sizeof *more);
  if (!more) return -1;
  lane->stages = more;
  plan_stage *stage = &more[lane->n_stages++];
  stage->name = unescape(fields[0]);
  stage->kernels = unescape(fields[3]);
  stage->file = unescape(fields[4]);
  if (!stage->name || !stage->kernels || !stage->file || number(fields[1], 1, 4096, &value)) return -1;
  if (strcmp(stage->kernels, "default") && strcmp(stage->kernels, "builtin") && strcmp(stage->kernels, "reference"))
    return -1;
  /* A bundle names files inside itself only. */
  if (stage->file[0] == '/' || strstr(stage->file, "..")) return -1;
  stage->threads = (int)value;
  char *rest = NULL;
  for (char *part = strtok_r(fields[2], ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    int *cores = grow(stage->cores, stage->n_cores, sizeof *cores);
    if (!cores) return -1;
    stage->cores = cores;
    if (number(part, 0, MAX_CORES - 1, &value)) return -1;
    stage->cores[stage->n_cores++] = (int)value;
  }
  return stage->n_cores ? 0 : -1;
}

static int read_line(plan *made, char **fields, int n_fields) {
  const char *word = fields[0];
  long value;
  fields++;
  n_fields--;
  plan_lane *lane = made->n_lanes ? &made->lanes[made->n_lanes - 1] : NULL;
  plan_stage *stage = lane && lane->n_stages ? &lane->stages[lane->n_stages - 1] : NULL;
  if (strcmp(word, "input") == 0) return read_port(fields, n_fields, &made->inputs);
  if (strcmp(word, "output") == 0) return read_port(fields, n_fields, &made->outputs);
  if (strcmp(word, "takes") == 0) return stage ? read_port(fields, n_fields, &stage->takes) : -1;
  if (strcmp(word, "gives") == 0) return stage ? read_port(fields, n_fields, &stage->gives) : -1;
  if (strcmp(word, "stage") == 0) return lane ? read_stage(fields, n_fields, lane) : -1;
  if (strcmp(word, "lane") == 0) {
    plan_lane *more = grow(made->lanes, made->n_lanes, sizeof *more);
    if (!more) return -1;
    made->lanes = more;
    made->n_lanes++;
    return n_fields ? -1 : 0;
  }
  if (n_fields != 1) return -1;
  if (strcmp(word, "tolerance") == 0) {
    double *more = grow(made->tolerances, made->n_tolerances, sizeof *more);
    char *end;
    if (!more) return -1;
    made->tolerances = more;
    more[made->n_tolerances++] = strtod(fields[0], &end);
    return *end ? -1 : 0;
  }
  if (strcmp(word, "mapping") == 0) {
    if (strlen(fields[0]) != 64) return -1;
    memcpy(made->mapping, fields[0], 65);
    return 0;
  }
  if (strcmp(word, "model") == 0) {
    free(made->model);
    made->model = unescape(fields[0]);
    return made->model ? 0 : -1;
  }
  if (strcmp(word, "stateful") == 0) {
    made->stateful = strcmp(fields[0], "yes") == 0;
    return made->stateful || strcmp(fields[0], "no") == 0 ? 0 : -1;
  }
  if (strcmp(word, "queue") == 0) {
    if (number(fields[0], 1, 1024, &value)) return -1;
    made->queue_depth = (int)value;
    return 0;
  }
  return -1;
}

static int complete(const plan *made) {
  if (!made->mapping[0] || !made->queue_depth || !made->n_lanes || made->n_tolerances != made->outputs.n) return 0;
  for (int lane = 0; lane < made->n_lanes; lane++)
    if (!made->lanes[lane].n_stages) return 0;
  return 1;
}

plan *plan_read(const char *text, char *error, size_t error_size) {
  static const char header[] = "tflite-dse plan 1\n";
  if (strncmp(text, header, sizeof header - 1) != 0) {
    snprintf(error, error_size, "plan.txt: expected 'tflite-dse plan 1' in its first line");
    return NULL;
  }
  plan *made = calloc(1, sizeof *made);
  char *copy = strdup(text + sizeof header - 1), *rest = copy, *line;
  if (!made || !copy) {
    snprintf(error, error_size, "out of memory");
    free(copy);
    free(made);
    return NULL;
  }
  for (int at = 2; (line = strsep(&rest, "\n")) != NULL; at++) {
    char *fields[MAX_FIELDS], *left = line;
    int n_fields = 0;
    if (!*line && !rest) break; /* after the last line */
    while (n_fields < MAX_FIELDS && (fields[n_fields] = strsep(&left, " ")) != NULL) n_fields++;
    if (left || !n_fields || read_line(made, fields, n_fields)) {
      snprintf(error, error_size, "plan.txt:%d: the line is damaged", at);
      free(copy);
      plan_free(made);
      return NULL;
    }
  }
  free(copy);
  if (!complete(made)) {
    snprintf(error, error_size, "plan.txt: lanes, stages or tolerances are missing");
    plan_free(made);
    return NULL;
  }
  return made;
}

static void free_ports(plan_ports *ports) {
  for (int at = 0; at < ports->n; at++) {
    free((char *)ports->items[at].tensor.name);
    free((char *)ports->items[at].tensor.type);
  }
  free(ports->items);
}

void plan_free(plan *read) {
  if (!read) return;
  for (int at = 0; at < read->n_lanes; at++) {
    for (int number = 0; number < read->lanes[at].n_stages; number++) {
      plan_stage *stage = &read->lanes[at].stages[number];
      free(stage->name);
      free(stage->kernels);
      free(stage->file);
      free(stage->cores);
      free_ports(&stage->takes);
      free_ports(&stage->gives);
    }
    free(read->lanes[at].stages);
  }
  free(read->lanes);
  free(read->tolerances);
  free(read->model);
  free_ports(&read->inputs);
  free_ports(&read->outputs);
  free(read);
}

int plan_source(const plan_lane *lane, int stage, int port) {
  long key = lane->stages[stage].takes.items[port].key;
  int found = -1;
  for (int at = 0; at < stage; at++)
    for (int made = 0; made < lane->stages[at].gives.n; made++)
      if (lane->stages[at].gives.items[made].key == key) found = at;
  return found;
}
