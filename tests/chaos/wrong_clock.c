/* A wall clock that is wrong, for one process and its children.

       LD_PRELOAD=wrong_clock.so WRONG_CLOCK_FILE=<file> python ...
       <file>: seconds to add to the wall clock, as text; read again ten times a second

   What asks for the wall clock is told the wrong one. What waits until a moment of the wall clock waits as long as it
   meant to: the deadline is moved back by the offset that this thread saw last, so that a jump between reading the
   clock and waiting neither ends the wait at once nor stretches it by hours. Monotonic clocks are not touched.

   Not covered: what does not go through libc (Go), what the kernel stamps (files' times), timerfd and timer_settime,
   and waits that stand when a real clock is set back: on a real machine those last longer. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define AGAIN_NS (NS / 10)
#define ERA_S 1000000000LL /* a later deadline is of the wall clock: no machine is up for 31 years */

static _Atomic long long offset_ns, read_at_ns = -AGAIN_NS;
static __thread long long seen_ns;
static __thread int has_seen;

static long long kernel_ns(clockid_t clock)
{
    struct timespec now;
    static int (*_Atomic real)(clockid_t, struct timespec *);
    int (*ask)(clockid_t, struct timespec *) = real;
    if (!ask)
        real = ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (ask(clock, &now))
        return 0;
    return now.tv_sec * NS + now.tv_nsec;
}

static void read_offset(void)
{
    const char *path = getenv("WRONG_CLOCK_FILE");
    char text[64], *end;
    int kept = errno, file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        ssize_t size = read(file, text, sizeof text - 1);
        close(file);
        if (size > 0) { /* empty: somebody writes it just now */
            text[size] = 0;
            double seconds = strtod(text, &end);
            if (end != text)
                offset_ns = (long long)(seconds * 1e9);
        }
    }
    errno = kept;
}

static long long offset(void)
{
    long long now = kernel_ns(CLOCK_MONOTONIC_COARSE), last = read_at_ns;
    if (now - last >= AGAIN_NS && atomic_compare_exchange_strong(&read_at_ns, &last, now))
        read_offset();
    has_seen = 1;
    return seen_ns = offset_ns;
}

__attribute__((constructor)) static void begin(void) { offset(); }

static struct timespec plus(struct timespec at, long long by_ns)
{
    long long ns = at.tv_nsec + by_ns % NS;
    at.tv_sec += by_ns / NS;
    at.tv_sec += ns < 0 ? -1 : ns / NS;
    at.tv_nsec = ns < 0 ? ns + NS : ns % NS;
    return at;
}

/* The deadline on the true clock; one of a monotonic clock is left as it is. */
static struct timespec meant(const struct timespec *until)
{
    if (until->tv_sec < ERA_S || until->tv_sec > ERA_S * 1000) /* or for ever */
        return *until;
    return plus(*until, -(has_seen ? seen_ns : offset()));
}

/* --- what tells the time ----------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *out)
{
    static int (*_Atomic real)(clockid_t, struct timespec *);
    int (*ask)(clockid_t, struct timespec *) = real;
    if (!ask)
        real = ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = ask(clock, out);
    if (!answer && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        *out = plus(*out, offset());
    return answer;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *out, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, out) ? base : 0;
}

/* --- what waits for it ------------------------------------------------------------------------------------------- */

/* pthread_cond_timedwait has an older namesake, which dlsym may find first. */
#define REAL(name) (dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2") ?: dlsym(RTLD_NEXT, name))

#define WAITS(answer, name, until, declared, given)                                                                   \
    answer name declared                                                                                              \
    {                                                                                                                 \
        static answer(*_Atomic real) declared;                                                                        \
        answer(*wait) declared = real;                                                                                \
        if (!wait)                                                                                                    \
            real = wait = (answer(*) declared)REAL(#name);                                                            \
        struct timespec truly = meant(until);                                                                         \
        return wait given;                                                                                            \
    }

WAITS(int, pthread_cond_timedwait, until,
      (pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict until), (c, m, &truly))
WAITS(int, pthread_cond_clockwait, until,
      (pthread_cond_t *restrict c, pthread_mutex_t *restrict m, clockid_t k, const struct timespec *restrict until),
      (c, m, k, &truly))
WAITS(int, cnd_timedwait, until, (cnd_t *restrict c, mtx_t *restrict m, const struct timespec *restrict until),
      (c, m, &truly))
WAITS(int, mtx_timedlock, until, (mtx_t *restrict m, const struct timespec *restrict until), (m, &truly))
WAITS(int, pthread_mutex_timedlock, until, (pthread_mutex_t *restrict m, const struct timespec *restrict until),
      (m, &truly))
WAITS(int, sem_timedwait, until, (sem_t *restrict s, const struct timespec *restrict until), (s, &truly))
WAITS(int, sem_clockwait, until, (sem_t *restrict s, clockid_t k, const struct timespec *restrict until),
      (s, k, &truly))
