/*
 * A pool of threads that lives as long as its model and sleeps when there is nothing to do.
 *
 * Tasks are handed out one by one. Which thread takes which task must never matter to the result: a task owns
 * its outputs and sums in its own fixed order.
 */
#include <stdlib.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "internal.h"

enum { MOST_THREADS = 512 };

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    pthread_t *threads; /* the caller of pool_run is worker 0 and not among them */
    size_t thread_count;
    size_t generation; /* counts jobs, so that a thread takes part in each once */
    size_t busy;       /* threads still in the current job */
    bool stop;

    TaskFunction function;
    void *context;
    size_t tasks;
    atomic_size_t next;
};

typedef struct {
    Pool *pool;
    size_t worker;
} WorkerStart;

static void take_tasks(Pool *pool, size_t worker) {
    for (;;) {
        const size_t task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= pool->tasks) return;
        pool->function(pool->context, task, worker);
    }
}

static void *worker_main(void *argument) {
    const WorkerStart start = *(WorkerStart *)argument;
    free(argument);
    Pool *const pool = start.pool;
    size_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->generation == seen && !pool->stop) pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->stop) break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->lock);
        take_tasks(pool, start.worker);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0) pthread_cond_signal(&pool->finished);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void pool_destroy(Pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->thread_count; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}

static bool start_worker(Pool *pool, size_t worker) {
    WorkerStart *const start = allocate(1, sizeof *start);
    if (!start) return false;
    *start = (WorkerStart){pool, worker};
    if (pthread_create(&pool->threads[pool->thread_count], NULL, worker_main, start) != 0) {
        free(start);
        return false;
    }
    pool->thread_count++;
    return true;
}

static Pool *pool_create(size_t threads, Failure *error) {
    Pool *const pool = allocate(1, sizeof *pool);
    if (!pool || !(pool->threads = allocate(threads, sizeof *pool->threads))) {
        free(pool);
        fail(error, "There is not enough memory for %zu threads.", threads);
        return NULL;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (size_t worker = 1; worker < threads; worker++) {
        if (start_worker(pool, worker)) continue;
        pool_destroy(pool);
        fail(error, "Thread %zu of %zu could not be started: ask for fewer.", worker + 1, threads);
        return NULL;
    }
    return pool;
}

/* Runs function(context, 0 .. tasks - 1, worker) and returns when all are done. One job at a time. */
static void pool_run(Pool *pool, size_t tasks, TaskFunction function, void *context) {
    if (tasks == 0) return;
    pool->function = function;
    pool->context = context;
    pool->tasks = tasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    if (tasks == 1 || pool->thread_count == 0) {
        take_tasks(pool, 0);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->generation++;
    pool->busy = pool->thread_count;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    take_tasks(pool, 0);

    pthread_mutex_lock(&pool->lock);
    while (pool->busy > 0) pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

/* Processors this process may run on, at least 1. */
static size_t available_processors(void) {
    long count = 0;
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) count = CPU_COUNT(&allowed);
#endif
    if (count < 1) count = sysconf(_SC_NPROCESSORS_ONLN);
    if (count < 1) return 1;
    return count > MOST_THREADS ? MOST_THREADS : (size_t)count;
}
