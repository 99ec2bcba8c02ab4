/* The time of day of whoever has this library loaded before its own: the real
 * one, and as many microseconds more as the file CLOCK_OFFSET says just now. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *offset;

__attribute__((constructor)) static void share_offset(void) {
  const char *path = getenv("CLOCK_OFFSET");
  int file = path ? open(path, O_RDONLY) : -1;
  void *shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (shared == MAP_FAILED)
    abort(); /* rather no server than one with the real time */
  close(file);
  offset = shared;
}

int gettimeofday(struct timeval *restrict shown, void *restrict zone) {
  struct timespec real;
  (void)zone;
  if (syscall(SYS_clock_gettime, CLOCK_REALTIME, &real) != 0)
    return -1;
  long long micros = real.tv_sec * 1000000LL + real.tv_nsec / 1000 + *offset;
  shown->tv_sec = micros / 1000000;
  shown->tv_usec = micros % 1000000;
  return 0;
}

time_t time(time_t *also) {
  struct timeval now;
  gettimeofday(&now, NULL);
  if (also)
    *also = now.tv_sec;
  return now.tv_sec;
}
