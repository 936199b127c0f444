/* Files of a bundle: text, .npy arrays, and checksums. */
#ifndef DSE_FILES_H
#define DSE_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "plan.h"

/* Read a whole file and put a 0 behind it; NULL and a message when that is not possible. */
char *read_file(const char *path, char *error, size_t error_size);

/* Check the files that are run (every: all files) against SHA256SUMS; 0, or -1 and a message. */
int check_sums(const char *folder, int every, char *error, size_t error_size);

/* SHA-256 of a file as text of 64 characters; 0, or -1 when it can not be read. */
int sha256_file(const char *path, char text[65]);

/* Frames of one tensor in a .npy file, mapped into memory. */
typedef struct {
  void *mapped;
  size_t mapped_bytes;
  const char *values; /* of the first frame */
  uint64_t n_frames;
} npy_frames;

/* Open a file whose first axis counts frames of this tensor; 0, or -1 and a message. */
int npy_open(npy_frames *frames, const char *path, const lrt_port *tensor, char *error, size_t error_size);
void npy_close(npy_frames *frames);

/* Write the header of a file of so many frames; may be written again at the start of the file. */
int npy_write_header(FILE *stream, const lrt_port *tensor, uint64_t n_frames);

#endif
