#define _GNU_SOURCE
#include "litert.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LiteRtRankedTensorType: element type, rank in the low 7 bits, sizes, strides. */
typedef struct {
  int element;
  uint32_t bits;
  int32_t sizes[LRT_MAX_RANK];
  uint32_t strides[LRT_MAX_RANK];
} tensor_type;

typedef void *handle;

/* name of the function, arguments (all return a status but the destroying ones, whose result is not used) */
#define FUNCTIONS(X)                                                                                         \
  X(CreateEnvironment, (int, const void *, handle *))                                                        \
  X(DestroyEnvironment, (handle))                                                                            \
  X(CreateModelFromFile, (handle, const char *, handle *))                                                   \
  X(DestroyModel, (handle))                                                                                  \
  X(CreateOptions, (handle *))                                                                               \
  X(DestroyOptions, (handle))                                                                                \
  X(SetOptionsHardwareAccelerators, (handle, int))                                                           \
  X(CreateOpaqueOptions, (const char *, void *, void (*)(void *), handle *))                                 \
  X(AddOpaqueOptions, (handle, handle))                                                                      \
  X(CreateCompiledModel, (handle, handle, handle, handle *))                                                 \
  X(DestroyCompiledModel, (handle))                                                                          \
  X(RunCompiledModel, (handle, size_t, size_t, handle *, size_t, handle *))                                  \
  X(GetNumModelSignatures, (handle, size_t *))                                                               \
  X(GetModelSignature, (handle, size_t, handle *))                                                           \
  X(GetNumSignatureInputs, (handle, size_t *))                                                               \
  X(GetNumSignatureOutputs, (handle, size_t *))                                                              \
  X(GetSignatureInputTensorByIndex, (handle, size_t, handle *))                                              \
  X(GetSignatureOutputTensorByIndex, (handle, size_t, handle *))                                             \
  X(GetTensorName, (handle, const char **))                                                                  \
  X(GetRankedTensorType, (handle, tensor_type *))                                                            \
  X(GetCompiledModelInputBufferRequirements, (handle, size_t, size_t, handle *))                             \
  X(GetCompiledModelOutputBufferRequirements, (handle, size_t, size_t, handle *))                            \
  X(GetTensorBufferRequirementsBufferSize, (handle, size_t *))                                               \
  X(CreateTensorBufferFromHostMemory, (const tensor_type *, void *, size_t, void (*)(void *), handle *))     \
  X(DestroyTensorBuffer, (handle))

struct lrt_runtime {
  void *library;
  handle environment;
#define POINTER(name, arguments) int(*name) arguments;
  FUNCTIONS(POINTER)
#undef POINTER
};

typedef struct {
  size_t place; /* in the signature */
  size_t n_bytes;
  tensor_type type;
} side_port;

struct lrt_model {
  lrt_runtime *runtime;
  handle model, compiled;
  int n_inputs, n_outputs;
  side_port *inputs, *outputs;
  handle *ins, *outs; /* in the order of the signature */
  handle *buffers;
  size_t n_buffers;
};

static const struct {
  int number;
  const char *name;
  size_t n_bytes;
} TYPES[] = {{1, "float32", 4}, {2, "int32", 4},     {3, "uint8", 1},   {4, "int64", 8},   {6, "bool", 1},
             {7, "int16", 2},   {8, "complex64", 8}, {9, "int8", 1},    {10, "float16", 2}, {11, "float64", 8},
             {13, "uint64", 8}, {16, "uint32", 4},   {17, "uint16", 2}};
#define N_TYPES (sizeof TYPES / sizeof *TYPES)

size_t lrt_type_bytes(const char *type) {
  for (size_t at = 0; at < N_TYPES; at++)
    if (strcmp(TYPES[at].name, type) == 0) return TYPES[at].n_bytes;
  return 0;
}

size_t lrt_padded(size_t n_bytes) {
  size_t blocks = (n_bytes + LRT_ALIGNMENT - 1) / LRT_ALIGNMENT;
  return (blocks ? blocks : 1) * LRT_ALIGNMENT;
}

lrt_runtime *lrt_load(const char *library, char *error, size_t error_size) {
  lrt_runtime *runtime = calloc(1, sizeof *runtime);
  if (!runtime) {
    snprintf(error, error_size, "out of memory");
    return NULL;
  }
  runtime->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!runtime->library) {
    snprintf(error, error_size, "the LiteRT library can not be loaded: %s (give its path with --library)", dlerror());
    free(runtime);
    return NULL;
  }
#define FIND(name, arguments)                                                                  \
  *(void **)&runtime->name = dlsym(runtime->library, "LiteRt" #name);                          \
  if (!runtime->name) {                                                                        \
    snprintf(error, error_size, "%s has no function LiteRt" #name ": another version?", library); \
    lrt_unload(runtime);                                                                       \
    return NULL;                                                                               \
  }
  FUNCTIONS(FIND)
#undef FIND
  int status = runtime->CreateEnvironment(0, NULL, &runtime->environment);
  if (status || !runtime->environment) {
    snprintf(error, error_size, "the LiteRT library made no environment (status %d)", status);
    lrt_unload(runtime);
    return NULL;
  }
  return runtime;
}

void lrt_unload(lrt_runtime *runtime) {
  if (!runtime) return;
  if (runtime->environment) runtime->DestroyEnvironment(runtime->environment);
  /* The library stays loaded: it may have threads or handlers of its own. */
  free(runtime);
}

static int match_type(const tensor_type *type, const lrt_port *port) {
  int rank = (int)(type->bits & 0x7f);
  const char *name = "?";
  for (size_t at = 0; at < N_TYPES; at++)
    if (TYPES[at].number == type->element) name = TYPES[at].name;
  if (strcmp(name, port->type) != 0 || rank != port->rank) return 0;
  for (int axis = 0; axis < rank; axis++)
    if (type->sizes[axis] != port->shape[axis]) return 0;
  return 1;
}

/* Find where each wanted port is in the signature; `output` chooses the side. */
static int find_ports(lrt_model *model, handle signature, int output, const lrt_port *ports, int n_ports,
                      side_port *found, char *error, size_t error_size) {
  lrt_runtime *runtime = model->runtime;
  const char *side = output ? "output" : "input";
  size_t count = 0;
  int status = (output ? runtime->GetNumSignatureOutputs : runtime->GetNumSignatureInputs)(signature, &count);
  if (status || count != (size_t)n_ports) {
    snprintf(error, error_size, "the file has %zu %ss, the plan %d (status %d)", count, side, n_ports, status);
    return -1;
  }
  const char **names = calloc(count + 1, sizeof *names);
  side_port *seen = calloc(count + 1, sizeof *seen);
  int result = -1, distinct = 1;
  if (!names || !seen) {
    snprintf(error, error_size, "out of memory");
    goto out;
  }
  for (size_t at = 0; at < count; at++) {
    handle tensor = NULL, needs = NULL;
    status = (output ? runtime->GetSignatureOutputTensorByIndex : runtime->GetSignatureInputTensorByIndex)(
        signature, at, &tensor);
    if (!status) status = runtime->GetTensorName(tensor, &names[at]);
    if (!status) status = runtime->GetRankedTensorType(tensor, &seen[at].type);
    if (!status)
      status = (output ? runtime->GetCompiledModelOutputBufferRequirements
                       : runtime->GetCompiledModelInputBufferRequirements)(model->compiled, 0, at, &needs);
    if (!status) status = runtime->GetTensorBufferRequirementsBufferSize(needs, &seen[at].n_bytes);
    if (status) {
      snprintf(error, error_size, "the runtime does not describe %s %zu (status %d)", side, at, status);
      goto out;
    }
    seen[at].place = at;
    if (!names[at]) names[at] = "";
    for (size_t other = 0; other < at; other++)
      if (strcmp(names[other], names[at]) == 0) distinct = 0;
  }
  for (int at = 0; at < n_ports; at++) {
    size_t place = (size_t)at;
    for (size_t other = 0; distinct && other < count; other++)
      if (strcmp(names[other], ports[at].name) == 0) place = other;
    if (!match_type(&seen[place].type, &ports[at]) || seen[place].n_bytes > lrt_padded(ports[at].n_bytes)) {
      snprintf(error, error_size, "%s '%s' of the file is of another type or shape than the plan says", side,
               ports[at].name);
      goto out;
    }
    found[at] = seen[place];
    found[at].n_bytes = lrt_padded(ports[at].n_bytes);
  }
  result = 0;
out:
  free(names);
  free(seen);
  return result;
}

lrt_model *lrt_compile(lrt_runtime *runtime, const char *path, int threads, const char *kernels,
                       const lrt_port *inputs, int n_inputs, const lrt_port *outputs, int n_outputs, char *error,
                       size_t error_size) {
  lrt_model *model = calloc(1, sizeof *model);
  handle options = NULL, opaque = NULL, signature = NULL;
  char text[128];
  size_t n_signatures = 0;
  int status;
  if (!model) goto memory;
  model->runtime = runtime;
  model->n_inputs = n_inputs;
  model->n_outputs = n_outputs;
  model->inputs = calloc((size_t)n_inputs + 1, sizeof *model->inputs);
  model->outputs = calloc((size_t)n_outputs + 1, sizeof *model->outputs);
  model->ins = calloc((size_t)n_inputs + 1, sizeof *model->ins);
  model->outs = calloc((size_t)n_outputs + 1, sizeof *model->outs);
  if (!model->inputs || !model->outputs || !model->ins || !model->outs) goto memory;
  status = runtime->CreateModelFromFile(runtime->environment, path, &model->model);
  if (status || !model->model) {
    snprintf(error, error_size,
             "%s: the runtime's C API does not take this file (status %d); variable tensors, for example, are "
             "not supported by it: use run.py, which falls back to the interpreter",
             path, status);
    goto fail;
  }
  status = runtime->GetNumModelSignatures(model->model, &n_signatures);
  if (status || n_signatures != 1) {
    snprintf(error, error_size, "%s: expected one signature, the runtime sees %zu", path, n_signatures);
    goto fail;
  }
  status = runtime->CreateOptions(&options);
  if (!status) status = runtime->SetOptionsHardwareAccelerators(options, 1); /* the CPU */
  if (strcmp(kernels, "default") == 0) kernels = "xnnpack";
  snprintf(text, sizeof text, "num_threads = %d\nkernel_mode = \"%s\"\n", threads, kernels);
  char *copy = strdup(text); /* the runtime frees it */
  if (!copy) goto memory;
  if (!status) status = runtime->CreateOpaqueOptions("xnnpack", copy, free, &opaque);
  if (!status) status = runtime->AddOpaqueOptions(options, opaque);
  if (!status) status = runtime->CreateCompiledModel(runtime->environment, model->model, options, &model->compiled);
  if (!status) status = runtime->GetModelSignature(model->model, 0, &signature);
  if (status || !model->compiled) {
    snprintf(error, error_size, "%s: the runtime can not compile the model (status %d)", path, status);
    goto fail;
  }
  char reason[512];
  if (find_ports(model, signature, 0, inputs, n_inputs, model->inputs, reason, sizeof reason) ||
      find_ports(model, signature, 1, outputs, n_outputs, model->outputs, reason, sizeof reason)) {
    snprintf(error, error_size, "%s: %s", path, reason);
    goto fail;
  }
  runtime->DestroyOptions(options);
  return model;
memory:
  snprintf(error, error_size, "out of memory");
fail:
  if (options) runtime->DestroyOptions(options);
  lrt_destroy(model);
  return NULL;
}

void lrt_destroy(lrt_model *model) {
  if (!model) return;
  for (size_t at = 0; at < model->n_buffers; at++) model->runtime->DestroyTensorBuffer(model->buffers[at]);
  if (model->compiled) model->runtime->DestroyCompiledModel(model->compiled);
  if (model->model) model->runtime->DestroyModel(model->model);
  free(model->buffers);
  free(model->inputs);
  free(model->outputs);
  free(model->ins);
  free(model->outs);
  free(model);
}

static lrt_buffer wrap(lrt_model *model, const side_port *port, void *memory, char *error, size_t error_size) {
  handle made = NULL;
  handle *more = realloc(model->buffers, (model->n_buffers + 1) * sizeof *more);
  if (!more) {
    snprintf(error, error_size, "out of memory");
    return NULL;
  }
  model->buffers = more;
  int status = model->runtime->CreateTensorBufferFromHostMemory(&port->type, memory, port->n_bytes, NULL, &made);
  if (status || !made) {
    snprintf(error, error_size, "the runtime does not take memory of ours (status %d)", status);
    return NULL;
  }
  model->buffers[model->n_buffers++] = made;
  return made;
}

lrt_buffer lrt_wrap_input(lrt_model *model, int number, void *memory, char *error, size_t error_size) {
  return wrap(model, &model->inputs[number], memory, error, error_size);
}

lrt_buffer lrt_wrap_output(lrt_model *model, int number, void *memory, char *error, size_t error_size) {
  return wrap(model, &model->outputs[number], memory, error, error_size);
}

int lrt_run(lrt_model *model, lrt_buffer *inputs, lrt_buffer *outputs) {
  for (int at = 0; at < model->n_inputs; at++) model->ins[model->inputs[at].place] = inputs[at];
  for (int at = 0; at < model->n_outputs; at++) model->outs[model->outputs[at].place] = outputs[at];
  return model->runtime->RunCompiledModel(model->compiled, 0, (size_t)model->n_inputs, model->ins,
                                          (size_t)model->n_outputs, model->outs);
}
