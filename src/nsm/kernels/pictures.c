/* From pictures to the largest states in windows of 2x2 of a layer that sees patches of them, and back.
 *
 * A window sends its gradient to the unit that won, and that alone.
 */
#include "fire.c"

enum { LANES = 16 };

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Pictures z, and what units see of them: patches without a margin. */
typedef struct {
    int64_t images, channels, depth, height, width, high, wide;
} Pictures;

static inline int64_t down(const Pictures *p) { return (p->height - p->high + 1) / 2; }
static inline int64_t across(const Pictures *p) { return (p->width - p->wide + 1) / 2; }

/* Of a window's four units, the one that won. */
static void keep(const Four at, const float *x, const uint8_t *restrict won, float *restrict kept, int64_t n)
{
    int32_t winner[MOST];
    for (int64_t i = 0; i < n; i++) winner[i] = won[i];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float left = winner[i] < 2 ? x[at.x[0] + i] : x[at.x[2] + i];
        float right = winner[i] < 2 ? x[at.x[1] + i] : x[at.x[3] + i];
        kept[i] = winner[i] & 1 ? right : left;
    }
}

/* The gradient of the product of the units that won, and their share of dk and dc. */
static void winner_back(const float *restrict g, const float *restrict kept, const float *restrict k,
                        const float *restrict c, float *restrict dx, float *restrict dk, float *restrict dc, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * slope(fmaf(kept[i], k[i], c[i]));
        dx[i] = d * k[i], dk[i] += d * kept[i], dc[i] += d;
    }
}

/* ------------------------------------------------------------------ small patches
 *
 * The product is made here as well, window by window, and never written: it would be the largest tensor of a network.
 * z is (images, depth, height, width); a unit sees depth * high * wide of it, in this order. Weights are (taps,
 * channels); there are MOST channels at most, a multiple of 16. What the unit that won has of the product is kept.
 */

/* Where the first of a window's four patches begins; the others are one to the right, one below, and both. */
static inline int64_t corner(const Pictures *p, int64_t window)
{
    const int64_t row = window / across(p) % down(p), image = window / across(p) / down(p);
    return (image * p->depth * p->height + 2 * row) * p->width + 2 * (window % across(p));
}

/* The products of all channels with the four patches of a window, (4, channels). */
static void products(const Pictures *p, const float *z, const float *w, float *x)
{
    for (int64_t ch = 0; ch < p->channels; ch += LANES) {
        const float *at = w + ch;
        Lanes a = {0}, b = {0}, c = {0}, d = {0};
        for (int64_t depth = 0; depth < p->depth; depth++)
            for (int64_t i = 0; i < p->high; i++) {
                const float *above = z + (depth * p->height + i) * p->width, *below = above + p->width;
                for (int64_t j = 0; j < p->wide; j++, at += p->channels) {
                    const Lanes weight = *(const Lanes *)at;
                    a += weight * above[j], b += weight * above[j + 1];
                    c += weight * below[j], d += weight * below[j + 1];
                }
            }
        *(Lanes *)(x + ch) = a, *(Lanes *)(x + p->channels + ch) = b;
        *(Lanes *)(x + 2 * p->channels + ch) = c, *(Lanes *)(x + 3 * p->channels + ch) = d;
    }
}

void nsm_fire_patches(const Pictures *p, const float *z, const float *w, const float *k, const float *c,
                      const uint64_t *key, float *states, uint8_t *won, float *kept, int threads)
{
    const int64_t channels = p->channels, blocks = blocks_of(channels), together = rows_together(channels);
    const int64_t windows = p->images * down(p) * across(p);
    const Four at = {{0, channels, 2 * channels, 3 * channels}, {0, 0, 0, 0}};
#pragma omp parallel for num_threads(threads)
    for (int64_t begin = 0; begin < windows; begin += together) {
        const int64_t end = least(begin + together, windows);
        Bits bits;
        philox(*key, begin * blocks, (end - begin) * blocks, bits.words);
        for (int64_t window = begin; window < end; window++) {
            const int64_t to = window * channels;
            float x[4 * MOST];
            products(p, z + corner(p, window), w, x);
            fire_window(at, x, k, c, bits.sixteen + (window - begin) * channels, states + to, won + to, channels);
            keep(at, x, won + to, kept + to, channels);
        }
    }
}

void nsm_threshold_patches(const Pictures *p, const float *z, const float *noisy, const float *w, const float *a,
                           const float *b, float *states, uint8_t *won, float *kept, int threads)
{
    const int64_t channels = p->channels;
    const Four at = {{0, channels, 2 * channels, 3 * channels}, {0, 0, 0, 0}};
#pragma omp parallel for num_threads(threads)
    for (int64_t window = 0; window < p->images * down(p) * across(p); window++) {
        const int64_t from = corner(p, window), to = window * channels;
        float x[4 * MOST], y[4 * MOST];
        products(p, z + from, w, x), products(p, noisy + from, w, y);
        threshold_window(at, x, y, a, b, states + to, won + to, channels);
        keep(at, x, won + to, kept + to, channels);
    }
}

/* One of four units has it, the others nothing: (4, channels). */
static void spread(const float *restrict d, const uint8_t *restrict won, float *restrict dx, int64_t n)
{
    int32_t winner[MOST];
    for (int64_t i = 0; i < n; i++) winner[i] = won[i];
    for (int j = 0; j < 4; j++)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dx[j * n + i] = winner[i] == j ? d[i] : 0;
}

/* Shares of the gradient of the weights, (parts, taps, channels), and sums for dk and dc, (2, parts, channels). */
void nsm_patches_back(const Pictures *p, const float *g, const uint8_t *won, const float *kept, const float *z,
                      const float *k, const float *c, float *shares, float *sums, int64_t parts, int threads)
{
    const int64_t channels = p->channels, taps = p->depth * p->high * p->wide;
    const int64_t windows = p->images * down(p) * across(p);
#pragma omp parallel for num_threads(threads)
    for (int64_t part = 0; part < parts; part++) {
        float *dw = shares + part * taps * channels, *dk = sums + part * channels, *dc = dk + parts * channels;
        memset(dw, 0, taps * channels * sizeof *dw);
        memset(dk, 0, channels * sizeof *dk), memset(dc, 0, channels * sizeof *dc);
        for (int64_t window = part * windows / parts; window < (part + 1) * windows / parts; window++) {
            const int64_t at = window * channels;
            float d[MOST], dx[4 * MOST];
            winner_back(g + at, kept + at, k, c, d, dk, dc, channels);
            spread(d, won + at, dx, channels);
            for (int64_t ch = 0; ch < channels; ch += LANES) {
                const Lanes a = *(Lanes *)(dx + ch), b = *(Lanes *)(dx + channels + ch);
                const Lanes c = *(Lanes *)(dx + 2 * channels + ch), d = *(Lanes *)(dx + 3 * channels + ch);
                float *to = dw + ch;
                for (int64_t depth = 0; depth < p->depth; depth++)
                    for (int64_t i = 0; i < p->high; i++) {
                        const float *above = z + corner(p, window) + (depth * p->height + i) * p->width;
                        const float *below = above + p->width;
                        for (int64_t j = 0; j < p->wide; j++, to += channels)
                            *(Lanes *)to += (a * above[j] + b * above[j + 1]) + (c * below[j] + d * below[j + 1]);
                    }
            }
        }
    }
}

/* ------------------------------------------------------------------ large patches: the way back
 *
 * Three of four units have no gradient, so that what is left to do is a fourth of the products of a convolution's way
 * back. z is (images, height, width, depth) and weights are (channels, high, wide, depth): what a unit sees of a row,
 * and the weights it sees it with, are runs of wide * depth numbers, a multiple of 16.
 */

enum { CHUNK = 10 }; /* vectors that stay in registers */

/* to += sum of scale * from, n vectors of it. */
static inline void add_vectors(float *to, const float *const *from, const float *scale, int64_t count, int64_t at,
                               int n)
{
    Lanes sum[CHUNK];
#pragma GCC unroll 10
    for (int v = 0; v < n; v++) sum[v] = ((Lanes *)to)[v];
    for (int64_t i = 0; i < count; i++) {
        const Lanes *vectors = (const Lanes *)(from[i] + at);
#pragma GCC unroll 10
        for (int v = 0; v < n; v++) sum[v] += vectors[v] * scale[i];
    }
#pragma GCC unroll 10
    for (int v = 0; v < n; v++) ((Lanes *)to)[v] = sum[v];
}

static void add_runs(float *to, const float *const *from, const float *scale, int64_t count, int64_t at, int64_t run)
{
    int64_t done = 0;
    for (; done + CHUNK * LANES <= run; done += CHUNK * LANES)
        add_vectors(to + done, from, scale, count, at + done, CHUNK);
    for (; done < run; done += LANES) add_vectors(to + done, from, scale, count, at + done, 1);
}

/* Where unit j of a window of a picture begins to see it. */
static inline int64_t unit_at(const Pictures *p, int64_t window, int j)
{
    return ((2 * (window / across(p)) + j / 2) * p->width + 2 * (window % across(p)) + j % 2) * p->depth;
}

/* Gradients: d of the product of the units that won, (windows, channels); dw of the weights; dz, unless it is NULL; and
 * sums for dk and dc, (2, parts, channels). */
void nsm_runs_back(const Pictures *p, const float *g, const uint8_t *won, const float *x, const float *z,
                   const float *w, const float *k, const float *c, float *d, float *dz, float *dw, float *sums,
                   int64_t parts, int threads)
{
    const int64_t channels = p->channels, run = p->wide * p->depth, line = p->width * p->depth;
    const int64_t windows = down(p) * across(p), size = p->height * line; /* of a picture */
#pragma omp parallel for num_threads(threads)
    for (int64_t part = 0; part < parts; part++) {
        float *dk = sums + part * channels, *dc = dk + parts * channels;
        memset(dk, 0, channels * sizeof *dk), memset(dc, 0, channels * sizeof *dc);
        for (int64_t i = part * p->images * windows / parts; i < (part + 1) * p->images * windows / parts; i++)
            for (int64_t ch = 0; ch < channels; ch += MOST) {
                const int64_t at = i * channels + ch, n = least(MOST, channels - ch);
                float kept[MOST];
                keep(four(i, 2 * down(p), 2 * across(p), channels, 0), x + ch, won + at, kept, n);
                winner_back(g + at, kept, k + ch, c + ch, d + at, dk + ch, dc + ch, n);
            }
    }
#pragma omp parallel for num_threads(threads)
    for (int64_t thread = 0; thread < threads; thread++) { /* a thread has some of the channels, for all images */
        const int64_t begin = thread * channels / threads, end = (thread + 1) * channels / threads;
        memset(dw + begin * p->high * run, 0, (end - begin) * p->high * run * sizeof *dw);
        for (int64_t image = 0; image < p->images; image++)
            for (int64_t ch = begin; ch < end; ch++)
                for (int64_t first = 0; first < windows; first += MOST) {
                    const int64_t n = least(MOST, windows - first);
                    const float *from[MOST];
                    float scale[MOST];
                    for (int64_t i = 0; i < n; i++) {
                        const int64_t window = first + i, at = (image * windows + window) * channels + ch;
                        from[i] = z + image * size + unit_at(p, window, won[at]), scale[i] = d[at];
                    }
                    for (int64_t i = 0; i < p->high; i++)
                        add_runs(dw + (ch * p->high + i) * run, from, scale, n, i * line, run);
                }
    }
    if (!dz) return;
#pragma omp parallel for num_threads(threads)
    for (int64_t image = 0; image < p->images; image++) {
        memset(dz + image * size, 0, size * sizeof *dz);
        for (int64_t window = 0; window < windows; window++)
            for (int j = 0; j < 4; j++) {
                const int64_t at = (image * windows + window) * channels;
                float *to = dz + image * size + unit_at(p, window, j);
                for (int64_t first = 0; first < channels; first += MOST) {
                    const float *from[MOST];
                    float scale[MOST];
                    int64_t n = 0;
                    for (int64_t ch = first; ch < channels && ch < first + MOST; ch++) {
                        from[n] = w + ch * p->high * run, scale[n] = d[at + ch];
                        n += won[at + ch] == j;
                    }
                    for (int64_t i = 0; i < p->high; i++)
                        add_runs(to + i * line, from, scale, n, i * run, run);
                }
            }
    }
}
