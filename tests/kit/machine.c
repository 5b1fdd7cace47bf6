// A machine that misbehaves, preloaded into the daemon by tests/kit/faults.py. Copies a journal's file whenever it
// has been synced: what is in DURABLE_FOLDER is what a power cut would leave. The wall clock is off by the seconds that
// are in WALL_STEP_FILE at the moment, as a number of 8 bytes.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    abort();
}

static void keep(int synced)
{
    char link[64], path[PATH_MAX + 1], fresh[PATH_MAX + 1], kept[PATH_MAX + 1], part[65536];
    snprintf(link, sizeof link, "/proc/self/fd/%d", synced);
    ssize_t length = readlink(link, path, PATH_MAX);
    path[length < 0 ? 0 : length] = 0;
    const char *name = strrchr(path, '/');
    const char *folder = getenv("DURABLE_FOLDER");
    if (!folder || !name || (strcmp(name, "/journal.db") && strcmp(name, "/journal.db-wal")))
        return;
    snprintf(kept, sizeof kept, "%s%s", folder, name);
    snprintf(fresh, sizeof fresh, "%s%s.fresh", folder, name);
    int copy = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (copy < 0)
        fail(fresh);
    off_t at = 0;
    for (ssize_t count; (count = pread(synced, part, sizeof part, at)) > 0; at += count)
        if (write(copy, part, count) != count)
            fail(fresh);
    close(copy);
    if (rename(fresh, kept))
        fail(kept);
}

#define SYNC(call)                                                  \
    int call(int descriptor)                                        \
    {                                                               \
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, #call);   \
        int result = real(descriptor);                              \
        if (!result)                                                \
            keep(descriptor);                                       \
        return result;                                              \
    }

SYNC(fsync)
SYNC(fdatasync)

static volatile const int64_t *shared_step(void)
{
    static const int64_t none;
    const char *path = getenv("WALL_STEP_FILE");
    if (!path)
        return &none;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    void *step = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (step == MAP_FAILED)
        fail(path);
    close(file);
    return step;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    static volatile const int64_t *step_s;
    if (!real) {
        step_s = shared_step();
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int result = real(clock, now);
    if (!result && clock == CLOCK_REALTIME)
        now->tv_sec += *step_s;
    return result;
}
