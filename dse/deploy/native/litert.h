/* The few functions of LiteRT's C API that a pipeline needs, loaded from its shared library.
 *
 * The declarations are this file's own; nothing of LiteRT is needed to compile it.  The layouts are
 * not promised to stay, so what comes back is checked and a difference is an error, not a crash.
 */
#ifndef DSE_LITERT_H
#define DSE_LITERT_H

#include <stddef.h>
#include <stdint.h>

#define LRT_ALIGNMENT 64 /* memory handed to the runtime starts at a multiple of this */
#define LRT_MAX_RANK 8

typedef struct lrt_runtime lrt_runtime; /* the library and its environment */
typedef struct lrt_model lrt_model;     /* a model compiled for the CPU */
typedef void *lrt_buffer;               /* the runtime's view of memory of ours */

/* An input or output that the caller expects.  `type` is a name such as float32. */
typedef struct {
  const char *name;
  const char *type;
  int rank;
  int32_t shape[LRT_MAX_RANK];
  size_t n_bytes;
} lrt_port;

/* All functions that can fail return NULL or a number other than 0 and write a message. */

/* Load the library: a path, or a name that the system's loader finds. */
lrt_runtime *lrt_load(const char *library, char *error, size_t error_size);
void lrt_unload(lrt_runtime *runtime);

/* Compile a model with some kernels (default, builtin or reference); the runtime's threads inherit the affinity mask of the calling thread.
 * Inputs and outputs are found by name (by position where names repeat or are unknown) and have to
 * be of the wanted type and shape. */
lrt_model *lrt_compile(lrt_runtime *runtime, const char *path, int threads, const char *kernels,
                       const lrt_port *inputs, int n_inputs, const lrt_port *outputs, int n_outputs, char *error,
                       size_t error_size);
void lrt_destroy(lrt_model *model);

/* Wrap aligned memory of at least n_bytes, rounded up to LRT_ALIGNMENT, for an input or output. */
lrt_buffer lrt_wrap_input(lrt_model *model, int number, void *memory, char *error, size_t error_size);
lrt_buffer lrt_wrap_output(lrt_model *model, int number, void *memory, char *error, size_t error_size);

/* Run on one buffer per input and per output, in the caller's order; 0 or the runtime's status. */
int lrt_run(lrt_model *model, lrt_buffer *inputs, lrt_buffer *outputs);

/* Bytes of a slot for a tensor of so many bytes. */
size_t lrt_padded(size_t n_bytes);

/* Bytes of one element of a type, 0 when it is not known. */
size_t lrt_type_bytes(const char *type);

#endif
