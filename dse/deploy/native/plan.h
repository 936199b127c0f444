/* plan.txt of a bundle: what runs where and what is handed over (its form: the bundle's README). */
#ifndef DSE_PLAN_H
#define DSE_PLAN_H

#include <stdint.h>

#include "litert.h"

typedef struct {
  long key;        /* equal keys are the same tensor */
  lrt_port tensor; /* name, type, shape, bytes */
} plan_port;

typedef struct {
  plan_port *items;
  int n;
} plan_ports;

typedef struct {
  char *name;
  char *kernels;
  char *file; /* relative to the bundle */
  int threads;
  int *cores;
  int n_cores;
  plan_ports takes, gives;
} plan_stage;

typedef struct {
  plan_stage *stages; /* in the order in which frames pass them */
  int n_stages;
} plan_lane;

typedef struct {
  char mapping[65]; /* sha256 of mapping.yaml */
  char *model;
  int stateful;
  int queue_depth;
  plan_ports inputs, outputs;
  double *tolerances;
  int n_tolerances;
  plan_lane *lanes;
  int n_lanes;
} plan;

/* Read the text; NULL and a message with the line when it is damaged. */
plan *plan_read(const char *text, char *error, size_t error_size);
void plan_free(plan *read);

/* For input `port` of a stage the number of the earlier stage that makes it, -1: the model's input. */
int plan_source(const plan_lane *lane, int stage, int port);

#endif
