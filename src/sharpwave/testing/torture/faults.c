/* File operations that fail on purpose, preloaded into a process whose store is tortured.
 *
 * torture_watch(folder) names the folder whose files are watched; torture_arm(kind, at, times) makes the at-th file
 * operation from now on fail, and the times - 1 after it; torture_quota(bytes) makes the folder a disk of that size.
 * Everything else goes to the C library unchanged. Built by sharpwave.testing.torture.faults.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { NONE, FAIL_EIO, FAIL_ENOSPC, SHORT_WRITE, KILL, KILL_IN_WRITE };

static char watched[PATH_MAX];
static size_t watched_length;
static int kind, left_to_fail;
static long at, count, quota = -1;

void torture_watch(const char *folder) {
    snprintf(watched, sizeof watched, "%s", folder);
    watched_length = strlen(watched);
}

void torture_arm(int new_kind, long new_at, int times) {
    kind = new_kind;
    at = new_at;
    left_to_fail = times;
    count = 0;
}

long torture_count(void) { return count; }

static long bytes_of(const char *folder) {
    long sum = 0;
    char path[PATH_MAX];
    struct dirent *entry;
    struct stat found;
    DIR *directory = opendir(folder);
    if (directory == NULL) return 0;
    while ((entry = readdir(directory)) != NULL) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (lstat(path, &found)) continue;
        if (S_ISDIR(found.st_mode)) sum += bytes_of(path);
        else if (found.st_nlink > 0) sum += found.st_blocks * 512L / (long)found.st_nlink;
    }
    closedir(directory);
    return sum;
}

/* Bytes free on the disk; negative: no limit. */
void torture_quota(long free_bytes) { quota = free_bytes < 0 ? -1 : bytes_of(watched) + free_bytes; }

static int under(const char *path) {
    return watched_length && !strncmp(path, watched, watched_length) &&
           (path[watched_length] == '/' || path[watched_length] == 0);
}

static int is_watched(int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = watched_length ? readlink(link, path, sizeof path - 1) : -1;
    if (length < 0) return 0;
    path[length] = 0;
    return under(path);
}

static int is_watched_at(int directory, const char *path) {
    if (path[0] == '/') return under(path);
    if (directory != AT_FDCWD) return is_watched(directory);
    char here[PATH_MAX];
    return getcwd(here, sizeof here) != NULL && under(here);
}

/* Counts an operation. Returns 0 if it should succeed, else its fault. Kills the process at the last operation. */
static int outcome(int is_write) {
    if (kind == NONE) return 0;
    count++;
    if (count < at || left_to_fail <= 0) return 0;
    if (kind == KILL || (kind == KILL_IN_WRITE && !is_write)) kill(getpid(), SIGKILL);
    left_to_fail--;
    if (kind == SHORT_WRITE && !is_write) {
        errno = EIO;
        return FAIL_EIO;
    }
    errno = kind == FAIL_ENOSPC ? ENOSPC : EIO;
    return kind;
}

static int over_quota(int descriptor, off_t end) {
    struct stat found;
    if (quota < 0 || fstat(descriptor, &found)) return 0;
    off_t growth = end - (off_t)found.st_blocks * 512;
    if (growth <= 0 || bytes_of(watched) + ((growth + 4095) & ~4095L) <= quota) return 0;
    errno = ENOSPC;
    return 1;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define WRITER(name, offset_type) \
    ssize_t name(int descriptor, const void *data, size_t size, offset_type offset) { \
        REAL(name); \
        if (is_watched(descriptor)) { \
            int how = outcome(1); \
            if (how == SHORT_WRITE || how == KILL_IN_WRITE) { \
                if (size > 1) real(descriptor, data, size / 2, offset); \
                if (how == KILL_IN_WRITE) kill(getpid(), SIGKILL); \
                errno = EIO; \
            } \
            if (how || over_quota(descriptor, offset + (off_t)size)) return -1; \
        } \
        return real(descriptor, data, size, offset); \
    }
WRITER(pwrite, off_t)
WRITER(pwrite64, off64_t)

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(write);
    if (is_watched(descriptor) && outcome(1)) return -1;
    return real(descriptor, data, size);
}

#define ON_DESCRIPTOR(name) \
    int name(int descriptor) { \
        REAL(name); \
        return is_watched(descriptor) && outcome(0) ? -1 : real(descriptor); \
    }
ON_DESCRIPTOR(fsync)
ON_DESCRIPTOR(fdatasync)

#define ALLOCATE(name, offset_type) \
    int name(int descriptor, offset_type offset, offset_type size) { \
        REAL(name); \
        if (is_watched(descriptor) && (outcome(0) || over_quota(descriptor, offset + size))) return errno; \
        return real(descriptor, offset, size); \
    }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

#define TRUNCATE(name, offset_type) \
    int name(int descriptor, offset_type size) { \
        REAL(name); \
        return is_watched(descriptor) && outcome(0) ? -1 : real(descriptor, size); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define OPEN(name) \
    int name(int directory, const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        int mode = flags & O_CREAT ? va_arg(more, int) : 0; \
        va_end(more); \
        if (flags & O_CREAT && is_watched_at(directory, path) && outcome(0)) return -1; \
        return real(directory, path, flags, mode); \
    }
OPEN(openat)
OPEN(openat64)

int renameat(int from, const char *path, int to, const char *target) {
    REAL(renameat);
    return is_watched_at(from, path) && outcome(0) ? -1 : real(from, path, to, target);
}

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    return is_watched_at(directory, path) && outcome(0) ? -1 : real(directory, path, flags);
}

int linkat(int from, const char *path, int to, const char *target, int flags) {
    REAL(linkat);
    return is_watched_at(from, path) && outcome(0) ? -1 : real(from, path, to, target, flags);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat);
    return is_watched_at(directory, path) && outcome(0) ? -1 : real(directory, path, mode);
}
