/* From a layer's product to its drawn states, and back, each in one pass over memory (see operations.py).
 *
 * Plain loops that the compiler turns into vector instructions. A product and the sum after it are rounded once where
 * fmaf is written and twice where it is not, in the same places as in the Triton kernels; random numbers are the same
 * too. Work is cut in parts by its size alone and a part belongs to one thread, so that threads change no bit.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCKS = 64, MOST = 8 * BLOCKS }; /* of Philox that are made at a time: 16 bits each for MOST units */

static const float erf_coefficients[] = {ERF};

/* erf(t) by the polynomial of nsm.functional.erf. */
static inline float erf_(float t)
{
    const int n = sizeof erf_coefficients / sizeof *erf_coefficients;
    t = t > (float)REACH ? (float)REACH : t < -(float)REACH ? -(float)REACH : t;
    float s = fmaf(t * t, (float)SCALE, -1), p = erf_coefficients[n - 1];
#pragma GCC unroll 16
    for (int i = n - 2; i >= 0; i--) p = fmaf(p, s, erf_coefficients[i]);
    return t * p;
}

/* d erf(t)/dt = 2/sqrt(pi) exp(-t^2) = 2/sqrt(pi) 2^n exp(r), to 2e-7 of it; zero below 2^-126. */
static inline float slope(float t)
{
    float y = t * t * -1.44269504f, n = (y + 0x1.8p23f) - 0x1.8p23f; /* the nearest integer */
    float r = (y - n) * 0.693147181f, p = 1 / 5040.0f;
    p = fmaf(p, r, 1 / 720.0f), p = fmaf(p, r, 1 / 120.0f), p = fmaf(p, r, 1 / 24.0f), p = fmaf(p, r, 1 / 6.0f);
    p = fmaf(p, r, 0.5f), p = fmaf(p, r, 1), p = fmaf(p, r, 1);
    union { int32_t bits; float value; } power = {((int32_t)(y < -126 ? 0 : n) + 127) << 23};
    return y < -126 ? 0 : p * 1.12837917f * power.value;
}

/* Random bits in pieces, the lowest first. */
typedef union {
    uint32_t words[4 * BLOCKS];
    int16_t sixteen[8 * BLOCKS];
    int8_t eight[16 * BLOCKS];
} Bits;

/* Philox-4x32-10 of the counters first, first + 1, ...: four words each. */
static inline void philox(uint64_t key, uint32_t first, int n, uint32_t *restrict words)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        uint32_t c0 = first + i, c1 = 0, c2 = 0, c3 = 0, k0 = key, k1 = key >> 32;
#pragma GCC unroll 10
        for (int j = 0; j < 10; j++) {
            uint64_t p0 = (uint64_t)c0 * 0xD2511F53, p1 = (uint64_t)c2 * 0xCD9E8D57;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, c1 = p1;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1, c3 = p0;
            k0 += 0x9E3779B9, k1 += 0xBB67AE85;
        }
        words[4 * i] = c0, words[4 * i + 1] = c1, words[4 * i + 2] = c2, words[4 * i + 3] = c3;
    }
}

static inline float state(int fires, float nan) { return nan == nan ? (fires ? 1.0f : -1.0f) : nan; }

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ------------------------------------------------------------------ units by themselves */

/* Every eight units of a row share a Philox block, the lowest bits first. */
static inline int64_t blocks_of(int64_t units) { return (units + 7) / 8; }

/* Rows whose blocks are made at a time, if a row has few. */
static inline int64_t rows_together(int64_t units)
{
    return blocks_of(units) < BLOCKS ? BLOCKS / blocks_of(units) : 1;
}

/* Of MOST units at most. Loops that compute have one size of numbers, or the largest would fill several registers. */
static void fire_units(const float *restrict x, const float *restrict k, const float *restrict c,
                       const int16_t *restrict bits, float *restrict z, int64_t n)
{
    float r[MOST];
    for (int64_t i = 0; i < n; i++) r[i] = bits[i] + 0.5f;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = fmaf(erf_(fmaf(x[i], k[i], c[i])), 32768, -r[i]);
        z[i] = state(v >= 0, v);
    }
}

void nsm_fire(const float *x, const float *k, const float *c, const uint64_t *key, float *z, int64_t rows,
              int64_t units, int threads)
{
    const int64_t blocks = blocks_of(units), together = rows_together(units);
#pragma omp parallel for num_threads(threads)
    for (int64_t begin = 0; begin < rows; begin += together)
        for (int64_t block = 0; block < blocks; block += BLOCKS) {
            const int64_t end = least(begin + together, rows), u = 8 * block;
            Bits bits;
            philox(*key, begin * blocks + block, least(BLOCKS, (end - begin) * blocks - block), bits.words);
            for (int64_t row = begin; row < end; row++)
                fire_units(x + row * units + u, k + u, c + u, bits.sixteen + 8 * blocks * (row - begin),
                           z + row * units + u, least(8 * BLOCKS, units - u));
        }
}

void nsm_threshold(const float *restrict x, const float *restrict y, const float *restrict a, const float *restrict b,
                   float *restrict z, int64_t rows, int64_t units, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++)
#pragma omp simd
        for (int64_t i = 0; i < units; i++) {
            float u = x[row * units + i] * a[i] + b[i] + y[row * units + i];
            z[row * units + i] = state(u >= 0, u);
        }
}

/* dx, and sums for dk and dc (2, parts, units) over as many rows each. */
void nsm_fire_back(const float *restrict g, const float *restrict x, const float *restrict k, const float *restrict c,
                   float *restrict dx, float *restrict sums, int64_t rows, int64_t units, int64_t parts, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < parts; p++) {
        float *restrict dk = sums + p * units, *restrict dc = dk + parts * units;
        for (int64_t i = 0; i < units; i++) dk[i] = dc[i] = 0;
        for (int64_t row = p * rows / parts; row < (p + 1) * rows / parts; row++)
#pragma omp simd
            for (int64_t i = 0; i < units; i++) {
                const int64_t at = row * units + i;
                float d = g[at] * slope(fmaf(x[at], k[i], c[i]));
                dx[at] = d * k[i], dk[i] += d * x[at], dc[i] += d;
            }
    }
}

/* (xi - p) z with xi = 1 where 8 random bits, with their sign, are below a number. */
static inline void blank_some(const float *restrict z, const int8_t *restrict r, float *restrict out, float p,
                              int32_t below, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = ((r[i] < below) - p) * z[i];
}

void nsm_blank(const float *z, const uint64_t *key, float *out, float p, int64_t below, int64_t size, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (int64_t begin = 0; begin < size; begin += 16 * BLOCKS) {
        Bits bits;
        philox(*key, begin / 16, BLOCKS, bits.words);
        blank_some(z + begin, bits.eight, out + begin, p, below, least(16 * BLOCKS, size - begin));
    }
}

/* ------------------------------------------------------------------ the largest state in windows of 2x2
 *
 * x is (images, height, width, channels); the lines k and c have a place for each channel or, with `places`, for each
 * position and channel.
 */

/* Where the four units of a window are in x, and their lines in k and c. */
typedef struct {
    int64_t x[4], k[4];
} Four;

static inline Four four(int64_t window, int64_t height, int64_t width, int64_t channels, int places)
{
    const int64_t across = width / 2, down = height / 2, column = window % across, row = window / across % down;
    const int64_t image = window / across / down * height * width * channels;
    Four at;
    for (int j = 0; j < 4; j++) {
        int64_t inner = ((2 * row + j / 2) * width + 2 * column + j % 2) * channels;
        at.x[j] = image + inner, at.k[j] = places ? inner : 0;
    }
    return at;
}

/* One window, MOST channels at most: its state, and the first unit that fires, or the first of all. */
static void fire_window(const Four at, const float *x, const float *k, const float *c, const int16_t *restrict bits,
                        float *restrict z, uint8_t *restrict won, int64_t n)
{
    float v[MOST];
    int32_t winner[MOST];
    for (int64_t i = 0; i < n; i++) v[i] = (bits[i] + 32768.5f) * (1 / 65536.0f);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float none = 1;
        int32_t first = 0;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) { /* none: the probability that no unit up to this one fires; NaN stays */
            float unit = x[at.x[j] + i], e = erf_(fmaf(unit, k[at.k[j] + i], c[at.k[j] + i]));
            none *= fmaf(e, -0.5f, 0.5f) + (unit - unit);
            first += none >= v[i];
        }
        z[i] = state(none < v[i], none);
        winner[i] = none < v[i] ? first : 0;
    }
    for (int64_t i = 0; i < n; i++) won[i] = winner[i];
}

void nsm_fire_pool(const float *x, const float *k, const float *c, const uint64_t *key, float *z, uint8_t *won,
                   int64_t windows, int64_t channels, int64_t height, int64_t width, int64_t lines, int threads)
{
    const int64_t blocks = blocks_of(channels), together = rows_together(channels);
#pragma omp parallel for num_threads(threads)
    for (int64_t begin = 0; begin < windows; begin += together)
        for (int64_t block = 0; block < blocks; block += BLOCKS) {
            const int64_t end = least(begin + together, windows), ch = 8 * block;
            Bits bits;
            philox(*key, begin * blocks + block, least(BLOCKS, (end - begin) * blocks - block), bits.words);
            for (int64_t window = begin; window < end; window++)
                fire_window(four(window, height, width, channels, lines > channels), x + ch, k + ch, c + ch,
                            bits.sixteen + 8 * blocks * (window - begin), z + window * channels + ch,
                            won + window * channels + ch, least(8 * BLOCKS, channels - ch));
        }
}

static void threshold_window(const Four at, const float *x, const float *y, const float *a, const float *b,
                             float *restrict z, uint8_t *restrict won, int64_t n)
{
    int32_t winner[MOST];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        int32_t first = 4;
#pragma GCC unroll 4
        for (int j = 3; j >= 0; j--) {
            float u = x[at.x[j] + i] * a[at.k[j] + i] + b[at.k[j] + i] + y[at.x[j] + i];
            first = u >= 0 ? j : first, sum += u;
        }
        z[i] = state(first < 4, sum - sum);
        winner[i] = first & 3;
    }
    for (int64_t i = 0; i < n; i++) won[i] = winner[i];
}

void nsm_threshold_pool(const float *x, const float *y, const float *a, const float *b, float *z, uint8_t *won,
                        int64_t windows, int64_t channels, int64_t height, int64_t width, int64_t lines, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (int64_t window = 0; window < windows; window++)
        for (int64_t ch = 0; ch < channels; ch += MOST)
            threshold_window(four(window, height, width, channels, lines > channels), x + ch, y + ch, a + ch, b + ch,
                             z + window * channels + ch, won + window * channels + ch, least(MOST, channels - ch));
}

/* The gradient goes to the unit that won: one slope for a window. With places, sums of unit j lie j * step further. */
static inline void window_back(const Four at, const float *g, const uint8_t *won, const float *x, const float *k,
                               const float *c, float *restrict dx, float *restrict dk, float *restrict dc, int64_t n,
                               int places, int64_t step)
{
    int32_t winner[MOST];
    for (int64_t i = 0; i < n; i++) winner[i] = won[i];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float unit = 0, line = 0, offset = 0;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            unit = winner[i] == j ? x[at.x[j] + i] : unit;
            line = winner[i] == j ? k[at.k[j] + i] : line, offset = winner[i] == j ? c[at.k[j] + i] : offset;
        }
        float d = g[i] * slope(fmaf(unit, line, offset));
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) dx[at.x[j] + i] = winner[i] == j ? d * line : 0;
        for (int j = 0; j < (places ? 4 : 1); j++) {
            float mine = !places || winner[i] == j ? d : 0;
            dk[j * step + i] += mine * unit, dc[j * step + i] += mine;
        }
    }
}

/* dx, and sums for dk and dc: (2, 1, parts, channels), each over as many windows; with places (2, 4, parts, windows of
 * an image * channels), each over as many images. */
void nsm_pool_back(const float *g, const uint8_t *won, const float *x, const float *k, const float *c, float *dx,
                   float *sums, int64_t windows, int64_t channels, int64_t height, int64_t width, int64_t lines,
                   int64_t parts, int threads)
{
    const int places = lines > channels;
    const int64_t together = places ? (height / 2) * (width / 2) : 1, count = windows / together;
    const int64_t units = together * channels, step = parts * units, offset = (places ? 4 : 1) * step;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < parts; p++) {
        for (int64_t at = p * units; at < 2 * offset; at += step) memset(sums + at, 0, units * sizeof *sums);
        for (int64_t window = p * count / parts * together; window < (p + 1) * count / parts * together; window++)
            for (int64_t ch = 0; ch < channels; ch += MOST) {
                const Four at = four(window, height, width, channels, places);
                const int64_t from = window * channels + ch, n = least(MOST, channels - ch);
                float *dk = sums + p * units + window % together * channels + ch, *dc = dk + offset;
                if (places) /* two copies of the loop, each without the question */
                    window_back(at, g + from, won + from, x + ch, k + ch, c + ch, dx + ch, dk, dc, n, 1, step);
                else
                    window_back(at, g + from, won + from, x + ch, k + ch, c + ch, dx + ch, dk, dc, n, 0, step);
            }
    }
}
