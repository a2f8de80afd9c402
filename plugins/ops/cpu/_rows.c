/* Norms, rotary embeddings and activations over rows of float32 or bfloat16, in float32 arithmetic.
 *
 * One pass over each row where torch needs five to eight operators; a decoding step is too short for their dispatch.
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


INLINE float get(const void *base, int64_t at, int bf16)
{
    if (bf16) {
        uint32_t bits = (uint32_t)((const uint16_t *)base)[at] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    return ((const float *)base)[at];
}

INLINE void put(void *base, int64_t at, float value, int bf16)
{
    if (bf16) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
        ((uint16_t *)base)[at] = (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
    } else {
        ((float *)base)[at] = value;
    }
}

typedef struct {
    int64_t rows, size, heads, stride, bf16;
    void *x, *residual, *out;
    const float *weight, *cos, *sin;
    float eps;
} Args;

/* residual += x (unless x is NULL); out = residual / rms(residual) * weight. out is of x's kind. */
INLINE void norm(const Args *a, int64_t row, int bf16)
{
    float *residual = (float *)a->residual + row * a->size;
    const int64_t at = row * a->size;
    float squares[LANES] = {0};
    int64_t whole = a->size - a->size % LANES;
    if (a->x)
        for (int64_t i = 0; i < a->size; i++)
            residual[i] += get(a->x, at + i, bf16);
    for (int64_t i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++)
            squares[j] += residual[i + j] * residual[i + j];
    for (int64_t i = whole; i < a->size; i++)
        squares[i - whole] += residual[i] * residual[i];
    double total = 0;
    for (int j = 0; j < LANES; j++)
        total += squares[j];
    float scale = (float)(1.0 / sqrt(total / (double)a->size + a->eps));
    for (int64_t i = 0; i < a->size; i++)
        put(a->out, at + i, residual[i] * scale * a->weight[i], bf16);
}

/* heads `[heads, size]` of a row, in place: halves (a, b) become (a cos - b sin, b cos + a sin) */
INLINE void rotate(const Args *a, int64_t row, int bf16)
{
    int64_t half = a->size / 2;
    const float *cos = a->cos + row * half, *sin = a->sin + row * half;
    for (int64_t head = 0; head < a->heads; head++) {
        int64_t at = row * a->stride + head * a->size;
        for (int64_t i = 0; i < half; i++) {
            float left = get(a->x, at + i, bf16), right = get(a->x, at + half + i, bf16);
            put(a->x, at + i, left * cos[i] - right * sin[i], bf16);
            put(a->x, at + half + i, right * cos[i] + left * sin[i], bf16);
        }
    }
}

/* exp by 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes); x must lie in [-87, 88] */
INLINE float exponential(float x)
{
    float n = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23 rounds to nearest */
    n -= 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t power = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

INLINE void gate(const Args *a, int64_t row, int bf16)
{
    const int64_t in = row * 2 * a->size, out = row * a->size;
    for (int64_t i = 0; i < a->size; i++) {
        float x = get(a->x, in + i, bf16), up = get(a->x, in + a->size + i, bf16);
        float bounded = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
        float y = x / (1.0f + exponential(-bounded));
        put(a->out, out + i, y * up, bf16);
    }
}

CLONES static void norm_row(const Args *a, int64_t row)
{
    if (a->bf16)
        norm(a, row, 1);
    else
        norm(a, row, 0);
}

CLONES static void rotate_row(const Args *a, int64_t row)
{
    if (a->bf16)
        rotate(a, row, 1);
    else
        rotate(a, row, 0);
}

CLONES static void gate_row(const Args *a, int64_t row)
{
    if (a->bf16)
        gate(a, row, 1);
    else
        gate(a, row, 0);
}

static void each_row(void (*work)(const Args *, int64_t), const Args *a, int64_t elements, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && elements > 16384)
    for (int64_t row = 0; row < a->rows; row++)
        work(a, row);
}

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

/* norm(threads, bf16, rows, size, x or 0, residual, weight, out, eps) */
static PyObject *py_norm(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[8];
    if (integers(args, count - 1, 8, n))
        return NULL;
    double eps = PyFloat_AsDouble(args[8]);
    if (PyErr_Occurred())
        return NULL;
    Args a = {.bf16 = n[1], .rows = n[2], .size = n[3], .x = (void *)n[4], .residual = (void *)n[5],
              .weight = (const float *)n[6], .out = (void *)n[7], .eps = (float)eps};
    Py_BEGIN_ALLOW_THREADS
    each_row(norm_row, &a, a.rows * a.size, (int)n[0]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* rope(threads, bf16, rows, heads, size, stride, x, cos, sin) */
static PyObject *py_rope(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[9];
    if (integers(args, count, 9, n))
        return NULL;
    Args a = {.bf16 = n[1], .rows = n[2], .heads = n[3], .size = n[4], .stride = n[5], .x = (void *)n[6],
              .cos = (const float *)n[7], .sin = (const float *)n[8]};
    Py_BEGIN_ALLOW_THREADS
    each_row(rotate_row, &a, a.rows * a.heads * a.size, (int)n[0]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* silu_mul(threads, bf16, rows, size, gate_up, out) */
static PyObject *py_silu_mul(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[6];
    if (integers(args, count, 6, n))
        return NULL;
    Args a = {.bf16 = n[1], .rows = n[2], .size = n[3], .x = (void *)n[4], .out = (void *)n[5]};
    Py_BEGIN_ALLOW_THREADS
    each_row(gate_row, &a, a.rows * a.size, (int)n[0]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"norm", (PyCFunction)(void (*)(void))py_norm, METH_FASTCALL, "Add to the residual and normalise."},
    {"rope", (PyCFunction)(void (*)(void))py_rope, METH_FASTCALL, "Rotate halves in place."},
    {"silu_mul", (PyCFunction)(void (*)(void))py_silu_mul, METH_FASTCALL, "SiLU of one half times the other."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_rows", "Operators over rows.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) { return PyModule_Create(&module); }
