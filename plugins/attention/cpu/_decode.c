/* Paged attention of single query rows over keys and values in float32, bfloat16, or int8 with a float32 scale per token
 * and head.
 *
 * A task is one query row, one key head (with the query heads that share it) and one run of at most SPLIT key slots,
 * so that long contexts spread over threads; runs begin at multiples of SPLIT whatever else is in the batch, and are
 * merged by their log-sum-exp. Everything is accumulated in float32.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

#define LANES 16
#define CHUNK 64 /* slots whose scores are kept at a time */
#define MOST_FOLD 16
#define MOST_HEAD 256

#define UNROLL _Pragma("GCC unroll 4") /* heads of 64 elements lie in registers */

enum { F32, BF16, I8 };

typedef float vf __attribute__((vector_size(64), aligned(4)));
typedef int32_t vi __attribute__((vector_size(64), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(32), aligned(2)));
typedef int16_t vs __attribute__((vector_size(32), aligned(2)));
typedef int8_t vb __attribute__((vector_size(16), aligned(1)));

typedef struct {
    int32_t rows, heads, fold, head_k, head_v, page_tokens, splits, split, table_width, queries, keys; /* the last two: F32, BF16 or I8 */
    float scale, soft_cap;
    const int32_t *sequence; /* [rows] row of `tables` */
    const int32_t *lo, *hi;  /* [rows] visible slots */
    const int32_t *tables;   /* [sequences, table_width] */
    const float *sinks;      /* [heads * fold] or NULL */
    float *partial;          /* [rows, heads, splits, fold, head_v + 2]: largest score, sum, weighted values */
} Plan;

typedef struct {
    const Plan *plan;
    const char *q, *k, *v;
    const float *k_scale, *v_scale; /* for I8 */
    char *out;
    float *lse;                                     /* [rows, heads * fold] or NULL */
    int64_t q_row, k_page, k_token, k_head, v_page, v_token, v_head; /* strides, in elements */
    int64_t scale_page, scale_token;                                 /* of both scales; heads are adjacent */
} Run;

INLINE vf load(const char *base, int64_t at, int kind)
{
    if (kind == BF16) {
        vh half;
        memcpy(&half, base + 2 * at, sizeof half);
        vi wide = __builtin_convertvector(half, vi) << 16;
        return (vf)wide;
    }
    if (kind == I8) {
        vb codes;
        memcpy(&codes, base + at, sizeof codes);
        /* step by step: gcc 12 takes a direct conversion apart element by element */
        return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(codes, vs), vi), vf);
    }
    vf value;
    memcpy(&value, base + 4 * at, sizeof value);
    return value;
}

INLINE vf fold(vf x, vi other) { return x + __builtin_shuffle(x, other); }

INLINE float sum(vf x)
{
    x = fold(x, (vi){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    x = fold(x, (vi){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    x = fold(x, (vi){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    x = fold(x, (vi){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
    return x[0];
}

/* exp by 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes); relative error about 1e-7, 0 below -87 */
INLINE vf vexp(vf x)
{
    vf zero = {0};
    vi dead = x < -87.0f;
    x = (vf)(((vi)x & ~dead) | ((vi)(zero - 87.0f) & dead));
    vf n = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23 rounds to nearest */
    n -= 12582912.0f;
    vf r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    return (vf)((vi)(p * (vf)power) & ~dead);
}

INLINE void attend(const Run *run, int task, int head_k, int head_v, int kind)
{
    const Plan *plan = run->plan;
    int part = task % plan->splits, head = task / plan->splits % plan->heads, row = task / plan->splits / plan->heads;
    int fold = plan->fold, page_tokens = plan->page_tokens;
    int lo = plan->lo[row], hi = plan->hi[row];
    int begin = part * plan->split, end = begin + plan->split;
    if (begin < lo)
        begin = lo;
    if (end > hi)
        end = hi;
    float *partial = plan->partial + (int64_t)task * fold * (head_v + 2);
    const int32_t *table = plan->tables + (int64_t)plan->sequence[row] * plan->table_width;

    float q[MOST_FOLD][MOST_HEAD], acc[MOST_FOLD][MOST_HEAD];
    float scores[MOST_FOLD][CHUNK], top[MOST_FOLD], total[MOST_FOLD];
    for (int g = 0; g < fold; g++) {
        UNROLL for (int d = 0; d < head_k; d += LANES) {
            vf x = load(run->q, row * run->q_row + (int64_t)(head * fold + g) * head_k + d, plan->queries) * plan->scale;
            memcpy(&q[g][d], &x, sizeof x);
        }
        memset(acc[g], 0, head_v * sizeof(float));
        top[g] = -INFINITY;
        total[g] = 0.0f;
    }

    for (int first = begin; first < end; first += CHUNK) {
        int count = end - first < CHUNK ? end - first : CHUNK;
        for (int t = 0; t < count; t++) {
            int slot = first + t, page = table[slot / page_tokens];
            if (page < 0) {
                for (int g = 0; g < fold; g++)
                    scores[g][t] = -INFINITY;
                continue;
            }
            int64_t at = page * run->k_page + slot % page_tokens * run->k_token + head * run->k_head;
            vf key[MOST_HEAD / LANES];
            float step = kind == I8 ? run->k_scale[page * run->scale_page + slot % page_tokens * run->scale_token + head]
                                    : 1.0f;
            UNROLL for (int d = 0; d < head_k; d += LANES)
                key[d / LANES] = kind == I8 ? load(run->k, at + d, kind) * step : load(run->k, at + d, kind);
            for (int g = 0; g < fold; g++) {
                vf dot = {0};
                UNROLL for (int d = 0; d < head_k; d += LANES) {
                    vf x;
                    memcpy(&x, &q[g][d], sizeof x);
                    dot += x * key[d / LANES];
                }
                scores[g][t] = sum(dot);
            }
        }
        for (int g = 0; g < fold; g++) {
            if (plan->soft_cap > 0.0f)
                for (int t = 0; t < count; t++)
                    if (scores[g][t] != -INFINITY)
                        scores[g][t] = plan->soft_cap * tanhf(scores[g][t] / plan->soft_cap);
            float best = top[g];
            for (int t = 0; t < count; t++)
                best = scores[g][t] <= best ? best : scores[g][t]; /* NaN must not be lost */
            for (int t = count; t < CHUNK; t++)
                scores[g][t] = -INFINITY;
            if (best == -INFINITY) {
                memset(scores[g], 0, sizeof scores[g]);
                continue;
            }
            vf sums = {0};
            for (int t = 0; t < CHUNK; t += LANES) {
                vf x;
                memcpy(&x, &scores[g][t], sizeof x);
                x = vexp(x - best);
                sums += x;
                memcpy(&scores[g][t], &x, sizeof x);
            }
            float fade = top[g] == -INFINITY ? 0.0f : expf(top[g] - best);
            total[g] = total[g] * fade + sum(sums);
            top[g] = best;
            if (fade != 1.0f)
                for (int d = 0; d < head_v; d++)
                    acc[g][d] *= fade;
        }
        for (int t = 0; t < count; t++) {
            int slot = first + t, page = table[slot / page_tokens];
            if (page < 0)
                continue;
            int64_t at = page * run->v_page + slot % page_tokens * run->v_token + head * run->v_head;
            vf value[MOST_HEAD / LANES];
            float step = kind == I8 ? run->v_scale[page * run->scale_page + slot % page_tokens * run->scale_token + head]
                                    : 1.0f;
            UNROLL for (int d = 0; d < head_v; d += LANES)
                value[d / LANES] = kind == I8 ? load(run->v, at + d, kind) * step : load(run->v, at + d, kind);
            for (int g = 0; g < fold; g++) {
                float weight = scores[g][t];
                UNROLL for (int d = 0; d < head_v; d += LANES) {
                    vf x;
                    memcpy(&x, &acc[g][d], sizeof x);
                    x += weight * value[d / LANES];
                    memcpy(&acc[g][d], &x, sizeof x);
                }
            }
        }
    }
    for (int g = 0; g < fold; g++, partial += head_v + 2) {
        partial[0] = top[g];
        partial[1] = total[g];
        memcpy(partial + 2, acc[g], head_v * sizeof(float));
    }
}

INLINE void attend_kind(const Run *run, int task, int kind)
{
    const Plan *plan = run->plan;
    if (plan->head_k == 64 && plan->head_v == 64)
        attend(run, task, 64, 64, kind);
    else
        attend(run, task, plan->head_k, plan->head_v, kind);
}

CLONES static void attend_task(const Run *run, int task)
{
    if (run->plan->keys == BF16)
        attend_kind(run, task, BF16);
    else if (run->plan->keys == I8)
        attend_kind(run, task, I8);
    else
        attend_kind(run, task, F32);
}

INLINE uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Combine the runs of one query head, its sink included, and write its result. */
static void merge(const Run *run, int row, int query)
{
    const Plan *plan = run->plan;
    int head = query / plan->fold, g = query % plan->fold, size = plan->head_v + 2;
    const float *first = plan->partial + (((int64_t)row * plan->heads + head) * plan->splits * plan->fold + g) * size;
    int64_t step = (int64_t)plan->fold * size;
    float top = plan->sinks ? plan->sinks[query] : -INFINITY;
    for (int s = 0; s < plan->splits; s++)
        top = fmaxf(top, first[s * step]);
    float total = plan->sinks ? expf(plan->sinks[query] - top) : 0.0f, acc[MOST_HEAD] = {0};
    for (int s = 0; s < plan->splits; s++) {
        const float *own = first + s * step;
        if (own[0] == -INFINITY)
            continue;
        float weight = expf(own[0] - top);
        total += weight * own[1];
        for (int d = 0; d < plan->head_v; d++)
            acc[d] += weight * own[2 + d];
    }
    int64_t queries = (int64_t)plan->heads * plan->fold, at = (row * queries + query) * plan->head_v;
    float share = total > 0.0f ? 1.0f / total : 0.0f;
    for (int d = 0; d < plan->head_v; d++) {
        if (plan->queries == BF16)
            ((uint16_t *)run->out)[at + d] = to_bf16(acc[d] * share);
        else
            ((float *)run->out)[at + d] = acc[d] * share;
    }
    if (run->lse)
        run->lse[row * queries + query] = total > 0.0f ? top + logf(total) : -INFINITY;
}

static void execute(const Run *run, int threads)
{
    const Plan *plan = run->plan;
    int tasks = plan->rows * plan->heads * plan->splits, queries = plan->heads * plan->fold;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < tasks; task++)
            attend_task(run, task);
#pragma omp for schedule(static)
        for (int i = 0; i < plan->rows * queries; i++)
            merge(run, i / queries, i % queries);
    }
}

static int integers(PyObject *const *args, Py_ssize_t count, int64_t *values)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = PyLong_AsLongLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static void drop(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, "plan")); }

/* plan(rows, heads, fold, head_k, head_v, page_tokens, splits, split, table_width, queries, keys,
 *      sequence, lo, hi, tables, sinks, partial, scale, soft_cap) -> capsule; addresses are borrowed */
static PyObject *make_plan(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[17];
    if (count != 19) {
        PyErr_SetString(PyExc_TypeError, "plan takes 19 arguments");
        return NULL;
    }
    if (integers(args, 17, n))
        return NULL;
    double scale = PyFloat_AsDouble(args[17]), soft_cap = PyFloat_AsDouble(args[18]);
    if (PyErr_Occurred())
        return NULL;
    if (n[2] > MOST_FOLD || n[3] > MOST_HEAD || n[4] > MOST_HEAD || n[3] % LANES || n[4] % LANES) {
        PyErr_SetString(PyExc_ValueError, "these head sizes have no compiled kernel");
        return NULL;
    }
    Plan *plan = PyMem_Malloc(sizeof *plan);
    if (!plan)
        return PyErr_NoMemory();
    *plan = (Plan){
        .rows = (int32_t)n[0], .heads = (int32_t)n[1], .fold = (int32_t)n[2], .head_k = (int32_t)n[3],
        .head_v = (int32_t)n[4], .page_tokens = (int32_t)n[5], .splits = (int32_t)n[6], .split = (int32_t)n[7],
        .table_width = (int32_t)n[8], .queries = (int32_t)n[9],
        .keys = (int32_t)n[10], .sequence = (const int32_t *)n[11], .lo = (const int32_t *)n[12],
        .hi = (const int32_t *)n[13], .tables = (const int32_t *)n[14], .sinks = (const float *)n[15],
        .partial = (float *)n[16],
        .scale = (float)scale, .soft_cap = (float)soft_cap,
    };
    return PyCapsule_New(plan, "plan", drop);
}

/* run(plan, threads, q, k, v, k_scale, v_scale, out, lse,
 *     q_row, k_page, k_token, k_head, v_page, v_token, v_head, scale_page, scale_token) */
static PyObject *do_run(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[17];
    if (count != 18) {
        PyErr_SetString(PyExc_TypeError, "run takes 18 arguments");
        return NULL;
    }
    const Plan *plan = PyCapsule_GetPointer(args[0], "plan");
    if (!plan || integers(args + 1, 17, n))
        return NULL;
    Run run = {
        .plan = plan, .q = (const char *)n[1], .k = (const char *)n[2], .v = (const char *)n[3],
        .k_scale = (const float *)n[4], .v_scale = (const float *)n[5], .out = (char *)n[6], .lse = (float *)n[7],
        .q_row = n[8], .k_page = n[9], .k_token = n[10], .k_head = n[11], .v_page = n[12], .v_token = n[13],
        .v_head = n[14], .scale_page = n[15], .scale_token = n[16],
    };
    Py_BEGIN_ALLOW_THREADS
    execute(&run, (int)n[0]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"plan", (PyCFunction)(void (*)(void))make_plan, METH_FASTCALL, "What does not depend on the layer."},
    {"run", (PyCFunction)(void (*)(void))do_run, METH_FASTCALL, "Attend in one layer."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_decode", "Paged attention of single rows.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__decode(void) { return PyModule_Create(&module); }
