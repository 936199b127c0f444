#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

char *read_file(const char *path, char *error, size_t error_size) {
  FILE *stream = fopen(path, "rb");
  char *text = NULL;
  size_t n = 0, room = 0, got;
  if (!stream) goto fail;
  do {
    if (room - n < 4096) {
      char *more = realloc(text, room + 65536 + 1);
      if (!more) goto fail;
      text = more;
      room += 65536;
    }
    got = fread(text + n, 1, room - n, stream);
    n += got;
  } while (got);
  if (ferror(stream)) goto fail;
  fclose(stream);
  text[n] = 0;
  return text;
fail:
  snprintf(error, error_size, "%s: can not be read: %s", path, strerror(errno));
  if (stream) fclose(stream);
  free(text);
  return NULL;
}

/* ------------------------------------------------------------------ SHA-256 (FIPS 180-4) */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t value, int by) { return value >> by | value << (32 - by); }

static void digest_block(uint32_t state[8], const unsigned char *block) {
  uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
                  h = state[7];
  for (int t = 0; t < 16; t++)
    w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
           block[4 * t + 3];
  for (int t = 16; t < 64; t++)
    w[t] = w[t - 16] + (turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 7] +
           (turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10);
  for (int t = 0; t < 64; t++) {
    uint32_t one = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[t] + w[t];
    uint32_t two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
  state[4] += e;
  state[5] += f;
  state[6] += g;
  state[7] += h;
}

int sha256_file(const char *path, char text[65]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  FILE *stream = fopen(path, "rb");
  unsigned char *buffer = malloc(1 << 16);
  uint64_t total = 0;
  size_t got;
  if (!stream || !buffer) goto fail;
  while ((got = fread(buffer, 1, 1 << 16, stream)) == 1 << 16) {
    for (size_t at = 0; at < got; at += 64) digest_block(state, buffer + at);
    total += got;
  }
  if (ferror(stream)) goto fail;
  total += got;
  size_t whole = got / 64 * 64, left = got - whole;
  for (size_t at = 0; at < whole; at += 64) digest_block(state, buffer + at);
  unsigned char last[128] = {0};
  memcpy(last, buffer + whole, left);
  last[left] = 0x80;
  size_t end = left < 56 ? 64 : 128;
  for (int at = 0; at < 8; at++) last[end - 1 - (size_t)at] = (unsigned char)(total * 8 >> 8 * at);
  for (size_t at = 0; at < end; at += 64) digest_block(state, last + at);
  for (int at = 0; at < 8; at++) snprintf(text + 8 * at, 9, "%08x", (unsigned)state[at]);
  free(buffer);
  fclose(stream);
  return 0;
fail:
  free(buffer);
  if (stream) fclose(stream);
  return -1;
}

int check_sums(const char *folder, int every, char *error, size_t error_size) {
  char path[PATH_MAX], sum[65], *line;
  int n_needed = 0, at = 0;
  snprintf(path, sizeof path, "%s/SHA256SUMS", folder);
  char *text = read_file(path, error, error_size), *rest = text;
  if (!text) return -1;
  while ((line = strsep(&rest, "\n")) != NULL) {
    at++;
    if (!*line && !rest) break;
    if (strlen(line) < 67 || line[64] != ' ' || line[65] != ' ') {
      snprintf(error, error_size, "%s:%d: expected a sum and a file", path, at);
      goto fail;
    }
    const char *name = line + 66;
    int needed = strcmp(name, "plan.txt") == 0 || strcmp(name, "mapping.yaml") == 0;
    n_needed += needed;
    if (!every && !needed && strncmp(name, "stages/", 7) != 0) continue;
    char file[PATH_MAX];
    if (snprintf(file, sizeof file, "%s/%s", folder, name) >= (int)sizeof file || sha256_file(file, sum)) {
      snprintf(error, error_size, "%s: %s can not be read: copy or export the bundle again", folder, name);
      goto fail;
    }
    if (strncmp(sum, line, 64) != 0) {
      snprintf(error, error_size, "%s: %s was changed: copy or export the bundle again", folder, name);
      goto fail;
    }
  }
  if (n_needed != 2) {
    snprintf(error, error_size, "%s: plan.txt or mapping.yaml is not listed", path);
    goto fail;
  }
  free(text);
  return 0;
fail:
  free(text);
  return -1;
}

/* ------------------------------------------------------------------ .npy, version 1.0 of the format */

static const struct {
  const char *type, *descr;
} DESCRS[] = {{"float32", "<f4"}, {"float16", "<f2"}, {"float64", "<f8"}, {"int8", "|i1"},  {"uint8", "|u1"},
              {"int16", "<i2"},   {"uint16", "<u2"},  {"int32", "<i4"},   {"uint32", "<u4"}, {"int64", "<i8"},
              {"uint64", "<u8"},  {"bool", "|b1"},    {"complex64", "<c8"}};

static const char *descr_of(const char *type) {
  for (size_t at = 0; at < sizeof DESCRS / sizeof *DESCRS; at++)
    if (strcmp(DESCRS[at].type, type) == 0) return DESCRS[at].descr;
  return "?";
}

/* Write the wanted shape behind the number of frames, as Python writes a tuple. */
static void shape_text(const lrt_port *tensor, char *text, size_t size) {
  size_t n = 0;
  for (int axis = 0; axis < tensor->rank && n < size; axis++)
    n += (size_t)snprintf(text + n, size - n, ", %d", (int)tensor->shape[axis]);
  if (!tensor->rank) snprintf(text, size, ",");
}

int npy_open(npy_frames *frames, const char *path, const lrt_port *tensor, char *error, size_t error_size) {
  struct stat info;
  memset(frames, 0, sizeof *frames);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || fstat(file, &info) || !S_ISREG(info.st_mode)) {
    snprintf(error, error_size, "%s: can not be read: %s", path, file < 0 ? strerror(errno) : "not a file");
    if (file >= 0) close(file);
    return -1;
  }
  size_t size = (size_t)info.st_size;
  unsigned char *bytes = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  if (bytes == MAP_FAILED || size < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0 || bytes[6] < 1 || bytes[6] > 3) {
    snprintf(error, error_size, "%s: not a .npy file", path);
    if (bytes != MAP_FAILED) munmap(bytes, size);
    return -1;
  }
  frames->mapped = bytes;
  frames->mapped_bytes = size;
  size_t begin = bytes[6] == 1 ? 10 : 12, length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
  if (bytes[6] > 1) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
  char header[1024] = "", shape[256] = "", wanted[256], descr[32], rest[256];
  unsigned long long n = 0;
  if (length < sizeof header && begin + length <= size) memcpy(header, bytes + begin, length);
  shape_text(tensor, shape, sizeof shape);
  snprintf(descr, sizeof descr, "'descr': '%s'", descr_of(tensor->type));
  const char *at = strstr(header, "'shape': (");
  int fits = at && sscanf(at + 10, "%llu", &n) == 1 && strstr(header, descr) && strstr(header, "'fortran_order': False");
  if (fits) {
    const char *after = at + 10 + strspn(at + 10, "0123456789");
    snprintf(rest, sizeof rest, "%.200s", after);
    snprintf(wanted, sizeof wanted, "%s)", shape);
    fits = strncmp(rest, wanted, strlen(wanted)) == 0;
  }
  if (!fits) {
    snprintf(error, error_size, "%s: expected frames of %s (n%s) along a first axis for '%s', the file says %s", path,
             tensor->type, shape, tensor->name, *header ? header : "something else");
    npy_close(frames);
    return -1;
  }
  if (tensor->n_bytes && n > (size - begin - length) / tensor->n_bytes) {
    snprintf(error, error_size, "%s: the file ends before its %llu frames do", path, n);
    npy_close(frames);
    return -1;
  }
  frames->values = (const char *)bytes + begin + length;
  frames->n_frames = n;
  return 0;
}

void npy_close(npy_frames *frames) {
  if (frames->mapped) munmap(frames->mapped, frames->mapped_bytes);
  memset(frames, 0, sizeof *frames);
}

int npy_write_header(FILE *stream, const lrt_port *tensor, uint64_t n_frames) {
  char shape[256] = "", header[512];
  shape_text(tensor, shape, sizeof shape);
  memset(header, ' ', sizeof header);
  int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%llu%s), }",
                   descr_of(tensor->type), (unsigned long long)n_frames, shape);
  if (n < 0 || n > 500) return -1;
  header[n] = ' ';
  header[501] = '\n';
  static const unsigned char magic[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 502 & 0xff, 502 >> 8};
  return fwrite(magic, 1, 10, stream) == 10 && fwrite(header, 1, 502, stream) == 502 ? 0 : -1;
}
