/* y = x W^T + b over bfloat16 with float32 sums, W packed once.
 *
 * W `[out, in]` lies in blocks of 16 outputs, `[out / 16][in / 2][16][2]`, padded with zeros: a line of 64 bytes is what
 * VDPBF16PS takes for 16 outputs and two inputs, and 16 lines are a B tile of AMX (Intel 64 and IA-32 Architectures
 * Software Developer's Manual, volume 2). So one copy serves one row at the speed of memory, and many.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))
#define AVX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")))
#define LANES 16
#define CHUNK 32               /* rows and outputs of one AMX step, and inputs of one tile */
#define SPLIT_ROWS 64          /* from here on threads share the rows, before that the outputs */
#define PACKED_BYTES (1 << 20) /* rows packed at a time, to stay in a core's cache */
#define AHEAD 1536             /* bytes that a block is fetched ahead */

typedef struct {
    const uint16_t *weight; /* packed */
    const float *bias;      /* padded to whole blocks, or NULL */
    int64_t in, padded, out;
    int64_t amx_rows; /* AMX from so many rows on */
} Matrix;

typedef struct {
    const Matrix *matrix;
    const uint16_t *x;
    uint16_t *y;
    int64_t rows, x_stride;
} Call;

INLINE const uint16_t *block_of(const Matrix *w, int64_t block) { return w->weight + block * w->padded * LANES; }

INLINE AVX __m512 start(const Matrix *w, int64_t block)
{
    return w->bias ? _mm512_loadu_ps(w->bias + block * LANES) : _mm512_setzero_ps();
}

INLINE AVX void store(const Call *c, int64_t row, int64_t block, __m512 sums)
{
    int64_t left = c->matrix->out - block * LANES;
    __mmask16 mask = left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
    _mm256_mask_storeu_epi16(c->y + row * c->matrix->out + block * LANES, mask, (__m256i)_mm512_cvtneps_pbh(sums));
}

/* `rows` rows times `blocks` blocks, all sums in registers */
INLINE AVX void small(const Call *c, int64_t row, int64_t block, const int rows, const int blocks)
{
    const Matrix *w = c->matrix;
    const int64_t line = w->padded * LANES;
    const uint16_t *weight = block_of(w, block), *x = c->x + row * c->x_stride;
    __m512 sums[12][4];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int b = 0; b < blocks; b++)
            sums[r][b] = start(w, block + b);
    for (int64_t k = 0; k < w->in; k += 2, weight += 2 * LANES) {
        __m512bh values[4];
#pragma GCC unroll 4
        for (int b = 0; b < blocks; b++) {
            values[b] = (__m512bh)_mm512_loadu_si512(weight + b * line);
            _mm_prefetch((const char *)(weight + b * line) + AHEAD, _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + r * c->x_stride + k, sizeof pair);
            __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int b = 0; b < blocks; b++)
                sums[r][b] = _mm512_dpbf16_ps(sums[r][b], values[b], both);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int b = 0; b < blocks; b++)
            store(c, row + r, block + b, sums[r][b]);
}

#define WIDE(n) case n: for (; block + 4 <= last; block += 4) small(c, row, block, n, 4); break;
#define TALL(n) case n: for (; block + 2 <= last; block += 2) small(c, row, block, n, 2); break;
#define LONE(n) case n: for (; block < last; block++) small(c, row, block, n, 1); break;

/* up to 12 rows over a range of blocks */
AVX static void strip(const Call *c, int64_t row, int64_t rows, int64_t block, int64_t last)
{
    switch (rows) {
        WIDE(1) WIDE(2) WIDE(3) WIDE(4) WIDE(5) WIDE(6)
        TALL(7) TALL(8) TALL(9) TALL(10) TALL(11) TALL(12)
    }
    switch (rows) {
        LONE(1) LONE(2) LONE(3) LONE(4) LONE(5) LONE(6)
        LONE(7) LONE(8) LONE(9) LONE(10) LONE(11) LONE(12)
    }
}

/* rows in strips; a few blocks at a time when there are several, which stay in cache */
AVX static void by_vectors(const Call *c, int64_t first, int64_t end, int64_t block, int64_t last)
{
    if (end - first <= 12) {
        if (end > first)
            strip(c, first, end - first, block, last);
        return;
    }
    for (; block < last; block += 4)
        for (int64_t row = first; row < end; row += 6)
            strip(c, row, end - row < 6 ? end - row : 6, block, block + 4 < last ? block + 4 : last);
}

/* A buffer of the calling thread, which goes with the thread; NULL where there is no memory. */
typedef struct {
    size_t held;
    uint16_t *rows;
} Scratch;

static pthread_key_t scratch_key;
static int scratch_failed;

static void drop_scratch(void *scratch)
{
    free(((Scratch *)scratch)->rows);
    free(scratch);
}

static void make_scratch_key(void) { scratch_failed = pthread_key_create(&scratch_key, drop_scratch); }

static uint16_t *scratch_rows(size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_scratch_key);
    if (scratch_failed)
        return NULL;
    Scratch *scratch = pthread_getspecific(scratch_key);
    if (!scratch) {
        scratch = calloc(1, sizeof *scratch);
        if (!scratch || pthread_setspecific(scratch_key, scratch)) {
            free(scratch);
            return NULL;
        }
    }
    if (bytes > scratch->held) {
        free(scratch->rows);
        scratch->rows = aligned_alloc(64, bytes);
        scratch->held = scratch->rows ? bytes : 0;
    }
    return scratch->rows;
}

/* A tiles `[rows / 16][in / 32][16][32]` of rows `[first, end)`, zeros where there is nothing */
AMX static void pack_rows(const Call *c, int64_t first, int64_t end, uint16_t *packed)
{
    const Matrix *w = c->matrix;
    for (int64_t row = first; row < first + (end - first + CHUNK - 1) / CHUNK * CHUNK; row++) {
        const uint16_t *x = c->x + row * c->x_stride;
        uint16_t *to = packed + (row - first) / 16 * 16 * w->padded + (row - first) % 16 * 32;
        for (int64_t k = 0; k < w->padded; k += 32, to += 16 * 32) {
            int64_t left = row < end ? w->in - k : 0;
            __mmask32 mask = left >= 32 ? 0xffffffffu : left > 0 ? (1u << left) - 1 : 0;
            _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, x + k));
        }
    }
}

/* 16 or 32 packed rows times one or two blocks. All loads of a step come before its products: interleaved they take
 * longer. `fetch`: the weights come from memory, not from a cache. */
INLINE AMX void tiles(const Matrix *w, const uint16_t *a, const uint16_t *b, float *sums, const int halves,
                      const int blocks, const int fetch)
{
    const int64_t half = 16 * w->padded, line = w->padded * LANES;
    _tile_zero(0);
    if (halves == 2)
        _tile_zero(1);
    if (blocks == 2)
        _tile_zero(2);
    if (halves == 2 && blocks == 2)
        _tile_zero(3);
    for (int64_t k = 0; k < w->padded; k += 32, a += 16 * 32, b += 16 * 32) {
        if (fetch)
            for (int i = 0; i < 16 * 32; i += 32) {
                _mm_prefetch((const char *)(b + i) + 2 * AHEAD, _MM_HINT_T0);
                if (blocks == 2)
                    _mm_prefetch((const char *)(b + line + i) + 2 * AHEAD, _MM_HINT_T0);
            }
        _tile_loadd(4, a, 64);
        if (halves == 2)
            _tile_loadd(5, a + half, 64);
        _tile_loadd(6, b, 64);
        if (blocks == 2)
            _tile_loadd(7, b + line, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (halves == 2)
            _tile_dpbf16ps(1, 5, 6);
        if (blocks == 2)
            _tile_dpbf16ps(2, 4, 7);
        if (halves == 2 && blocks == 2)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 2 * LANES * 4);
    if (halves == 2)
        _tile_stored(1, sums + 16 * 2 * LANES, 2 * LANES * 4);
    if (blocks == 2)
        _tile_stored(2, sums + LANES, 2 * LANES * 4);
    if (halves == 2 && blocks == 2)
        _tile_stored(3, sums + 16 * 2 * LANES + LANES, 2 * LANES * 4);
}

AMX static void chunk(const Call *c, const uint16_t *packed, int64_t row, int64_t rows, int64_t block, int blocks,
                      int fetch)
{
    const Matrix *w = c->matrix;
    const uint16_t *weight = block_of(w, block);
    float sums[CHUNK * 2 * LANES] __attribute__((aligned(64)));
    switch ((rows > 16) + 2 * (blocks == 2) + 4 * (fetch != 0)) {
        case 0: tiles(w, packed, weight, sums, 1, 1, 0); break;
        case 1: tiles(w, packed, weight, sums, 2, 1, 0); break;
        case 2: tiles(w, packed, weight, sums, 1, 2, 0); break;
        case 3: tiles(w, packed, weight, sums, 2, 2, 0); break;
        case 4: tiles(w, packed, weight, sums, 1, 1, 1); break;
        case 5: tiles(w, packed, weight, sums, 2, 1, 1); break;
        case 6: tiles(w, packed, weight, sums, 1, 2, 1); break;
        case 7: tiles(w, packed, weight, sums, 2, 2, 1); break;
    }
    __asm__ volatile("" : : "r"(sums) : "memory");
    for (int b = 0; b < blocks; b++) {
        __m512 bias = start(w, block + b);
        for (int64_t r = 0; r < rows; r++)
            store(c, row + r, block + b, _mm512_add_ps(_mm512_loadu_ps(sums + r * 2 * LANES + b * LANES), bias));
    }
}

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileConfig;

/* returns 0 where there was no memory */
AMX static int by_tiles(const Call *c, int64_t first, int64_t end, int64_t block, int64_t last)
{
    const Matrix *w = c->matrix;
    int64_t most = PACKED_BYTES / (2 * w->padded) / CHUNK * CHUNK;
    if (most < CHUNK)
        most = CHUNK;
    int64_t span = (end - first + CHUNK - 1) / CHUNK * CHUNK;
    uint16_t *packed = scratch_rows((size_t)((span < most ? span : most) * w->padded) * 2);
    if (!packed)
        return 0;
    volatile TileConfig config = {.palette = 1}; /* compilers have dropped stores that only LDTILECFG reads */
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig((const void *)&config);
    for (int64_t row = first; row < end; row += most) {
        int64_t stop = row + most < end ? row + most : end;
        pack_rows(c, row, stop, packed);
        for (int64_t b = block; b < last; b += 2) {
            int blocks = b + 2 <= last ? 2 : 1;
            for (int64_t r = row; r < stop; r += CHUNK)
                chunk(c, packed + (r - row) * w->padded, r, stop - r < CHUNK ? stop - r : CHUNK, b, blocks, r == row);
        }
    }
    _tile_release();
    return 1;
}

static void part(const Call *c, int64_t first, int64_t end, int64_t block, int64_t last)
{
    if (first >= end || block >= last)
        return;
    if (end - first >= c->matrix->amx_rows && by_tiles(c, first, end, block, last))
        return;
    by_vectors(c, first, end, block, last);
}

static int64_t share(int64_t total, int64_t grain, int64_t which, int64_t of)
{
    int64_t at = (total + grain - 1) / grain * which / of * grain;
    return at < total ? at : total;
}

static void multiply(const Call *c, int threads)
{
    int64_t blocks = (c->matrix->out + LANES - 1) / LANES;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int64_t which = omp_get_thread_num(), of = omp_get_num_threads();
        if (c->rows >= SPLIT_ROWS)
            part(c, share(c->rows, CHUNK, which, of), share(c->rows, CHUNK, which + 1, of), 0, blocks);
        else
            part(c, 0, c->rows, share(blocks, 4, which, of), share(blocks, 4, which + 1, of));
    }
}

static int has_amx(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1))
        return 0;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

static int has_vectors(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}
#else
typedef struct { const uint16_t *weight; const float *bias; int64_t in, padded, out, amx_rows; } Matrix;
typedef struct { const Matrix *matrix; const uint16_t *x; uint16_t *y; int64_t rows, x_stride; } Call;
static void multiply(const Call *c, int threads) { (void)c, (void)threads; }
static int has_amx(void) { return 0; }
static int has_vectors(void) { return 0; }
#endif

static int integers(PyObject *const *args, Py_ssize_t count, Py_ssize_t wanted, int64_t *values)
{
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments expected", wanted);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = PyLong_AsLongLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static void drop(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, "matrix")); }

/* matrix(weight, bias or 0, in, padded, out, amx_rows) -> capsule; addresses are borrowed */
static PyObject *py_matrix(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[6];
    if (integers(args, count, 6, n))
        return NULL;
    Matrix *matrix = PyMem_Malloc(sizeof *matrix);
    if (!matrix)
        return PyErr_NoMemory();
    *matrix = (Matrix){.weight = (const uint16_t *)n[0], .bias = (const float *)n[1], .in = n[2], .padded = n[3],
                       .out = n[4], .amx_rows = n[5]};
    return PyCapsule_New(matrix, "matrix", drop);
}

/* multiply(matrix, threads, rows, x, x_stride, y) */
static PyObject *py_multiply(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[5];
    const Matrix *matrix = count ? PyCapsule_GetPointer(args[0], "matrix") : NULL;
    if (!matrix || integers(args + 1, count - 1, 5, n))
        return NULL;
    Call call = {.matrix = matrix, .rows = n[1], .x = (const uint16_t *)n[2], .x_stride = n[3], .y = (uint16_t *)n[4]};
    Py_BEGIN_ALLOW_THREADS
    multiply(&call, (int)n[0]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* support() -> 0: nothing, 1: vectors of bfloat16, 2: tiles too */
static PyObject *py_support(PyObject *self, PyObject *ignored)
{
    return PyLong_FromLong(has_vectors() ? 1 + has_amx() : 0);
}

static PyMethodDef methods[] = {
    {"matrix", (PyCFunction)(void (*)(void))py_matrix, METH_FASTCALL, "Describe a packed matrix."},
    {"multiply", (PyCFunction)(void (*)(void))py_multiply, METH_FASTCALL, "Rows times a packed matrix."},
    {"support", py_support, METH_NOARGS, "What this processor has."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_bf16", "Linear layers in bfloat16.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__bf16(void) { return PyModule_Create(&module); }
