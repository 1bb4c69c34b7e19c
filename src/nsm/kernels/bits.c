/* States of threshold units as single bits, 32 rows of a batch side by side (see bits.py).
 *
 * A "group" is 32 rows. The states of a group are one 32-bit word for every element: bit l belongs to slot l. Where a
 * vector of 32-bit numbers is needed, one holds the even slots and one the odd.
 *
 * A product of weights with -1s and +1s is a sum of table entries: five states select one of 32 sums of +-q, and one
 * instruction looks it up for 32 rows. All of it is integer arithmetic, so it is exact in any order. From there on the
 * operations are those of nsm.functional, one by one and never fused, so that results are equal bit for bit.
 *
 * Blank-out at neurons needs two products, u = alpha w.z + b + w.((xi - p) z). With z' = (2 xi - 1) z, which are the
 * states with those that are blanked out turned round, xi z = (z + z') / 2: two products with -1s and +1s.
 */
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__BMI2__)
#error "needs AVX-512"
#endif
#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 32, ODD = 0xAAAAAAAA, EVEN = 0x55555555, UNITS = 4, PLACES = 4, CHUNK = 20 };

/* ------------------------------------------------------------------ erf, thresholds */

static inline __m512 erf16(__m512 t)
{
    static const float coefficients[] = {ERF};
    const int n = sizeof coefficients / sizeof *coefficients;
    t = _mm512_min_ps(_mm512_max_ps(t, _mm512_set1_ps(-(float)REACH)), _mm512_set1_ps((float)REACH));
    __m512 s = _mm512_sub_ps(_mm512_mul_ps(_mm512_mul_ps(t, t), _mm512_set1_ps((float)SCALE)), _mm512_set1_ps(1));
    __m512 p = _mm512_set1_ps(coefficients[n - 1]);
    for (int i = n - 2; i >= 0; i--) p = _mm512_add_ps(_mm512_mul_ps(p, s), _mm512_set1_ps(coefficients[i]));
    return _mm512_mul_ps(t, p);
}

static inline __m512 off(__m512 e) /* the probability of -1 */
{
    return _mm512_sub_ps(_mm512_set1_ps(0.5f), _mm512_mul_ps(_mm512_set1_ps(0.5f), e));
}

static inline __m512 pooled(__m512 all_off) /* 2 P - 1 of the maximum */
{
    return _mm512_sub_ps(_mm512_set1_ps(1), _mm512_mul_ps(_mm512_set1_ps(2), all_off));
}

/* The largest r with r + 1/2 <= 2^15 e: from -32769, for never, to 32767, for always. */
static inline __m512i threshold(__m512 e)
{
    __m512 y = _mm512_mul_ps(e, _mm512_set1_ps(32768)), floor = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __mmask16 less = _mm512_cmp_ps_mask(_mm512_sub_ps(y, floor), _mm512_set1_ps(0.5f), _CMP_LT_OQ);
    __m512i t = _mm512_cvttps_epi32(floor);
    return _mm512_mask_sub_epi32(t, less, t, _mm512_set1_epi32(1));
}

/* The thresholds of one element in 16 bits, and the word of slots in which it can fire at all. */
static inline uint32_t store_thresholds(int16_t *to, __m512 even, __m512 odd)
{
    const __m512i never = _mm512_set1_epi32(-32769), least = _mm512_set1_epi32(-32768);
    __m512i a = threshold(even), b = threshold(odd);
    uint32_t can = _pdep_u32(_mm512_cmpgt_epi32_mask(a, never), EVEN) | _pdep_u32(_mm512_cmpgt_epi32_mask(b, never), ODD);
    a = _mm512_max_epi32(a, least), b = _mm512_max_epi32(b, least);
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(ODD, a, _mm512_slli_epi32(b, 16)));
    return can;
}

/* ------------------------------------------------------------------ the draw */

typedef struct {
    uint32_t key[2], number;
    int32_t threads;
    int64_t groups;
    const uint32_t *inputs, *samples; /* (groups, 32) */
} Noise;

/* Philox-4x32-10 for eight counters, whose words are the low halves of 64-bit lanes; the high halves are not zero. */
static inline void philox(__m512i c[4], const uint32_t key[2])
{
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < 10; i++) {
        __m512i p0 = _mm512_mul_epu32(c[0], m0), p1 = _mm512_mul_epu32(c[2], m1);
        c[0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c[1], _mm512_set1_epi64(k0), 0x96);
        c[2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c[3], _mm512_set1_epi64(k1), 0x96);
        c[1] = p1, c[3] = p0;
        k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
}

typedef struct {
    __m512i input[4], sample[4]; /* of slots 4 i + (0, 2, 1, 3)[m]: where the halves end up that are joined later */
} Counters;

static Counters counters(const Noise *noise, int64_t group)
{
    Counters found;
    for (int m = 0; m < 4; m++) {
        uint64_t in[8], number[8];
        for (int i = 0; i < 8; i++) {
            int64_t slot = SLOTS * group + 4 * i + (m == 1 ? 2 : m == 2 ? 1 : m);
            in[i] = noise->inputs[slot], number[i] = noise->samples[slot];
        }
        found.input[m] = _mm512_loadu_si512(in), found.sample[m] = _mm512_loadu_si512(number);
    }
    return found;
}

/* Four words of block j for 32 slots, in vectors of the even slots and of the odd. */
static inline void words(const Noise *noise, const Counters *of, int64_t j, __m512i even[4], __m512i odd[4])
{
    __m512i c[4][4];
    for (int m = 0; m < 4; m++) {
        c[m][0] = _mm512_set1_epi64(j), c[m][1] = of->input[m], c[m][2] = of->sample[m];
        c[m][3] = _mm512_set1_epi64(noise->number);
        philox(c[m], noise->key);
    }
    for (int k = 0; k < 4; k++) {
        even[k] = _mm512_mask_blend_epi32(0xAAAA, c[0][k], _mm512_slli_epi64(c[1][k], 32));
        odd[k] = _mm512_mask_blend_epi32(0xAAAA, c[2][k], _mm512_slli_epi64(c[3][k], 32));
    }
}

/* The low or the high halves of the words, a half for each slot. */
static inline __m512i halves(__m512i even, __m512i odd, int high)
{
    return high ? _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32(even, 16), odd)
                : _mm512_mask_blend_epi16(ODD, even, _mm512_slli_epi32(odd, 16));
}

/* The states of one group from its thresholds: 16 bits of noise each, eight states to a counter. */
static void draw(const Noise *noise, int64_t group, const int16_t *thresholds, const uint32_t *can, int64_t n, uint32_t *bits)
{
    const Counters of = counters(noise, group);
    const int64_t blocks = (n + 7) / 8;
    for (int64_t j = 0; j < blocks; j++) {
        __m512i even[4], odd[4];
        words(noise, &of, j, even, odd);
        for (int i = 0; i < 8; i++) {
            int64_t element = i * blocks + j;
            if (element >= n) break;
            __m512i most = _mm512_loadu_si512(thresholds + SLOTS * element);
            bits[element] = _mm512_cmple_epi16_mask(halves(even[i / 2], odd[i / 2], i % 2), most) & can[element];
        }
    }
}

/* The states of one group with those turned round that are blanked out: kept is what has an integer of `bytes`, 1 or 4,
 * below the bound. */
static void turn(const Noise *noise, int64_t group, int64_t bytes, int64_t bound, const uint32_t *below, int64_t n, uint32_t *bits)
{
    const Counters of = counters(noise, group);
    const int64_t parts = 16 / bytes, blocks = (n + parts - 1) / parts;
    for (int64_t j = 0; j < blocks; j++) {
        __m512i even[4], odd[4];
        words(noise, &of, j, even, odd);
        for (int i = 0; i < parts; i++) {
            int64_t element = i * blocks + j;
            if (element >= n) break;
            uint32_t kept;
            if (bytes == 1) {
                __m512i two = halves(even[i / 4], odd[i / 4], i / 2 % 2); /* of which this is the low or the high */
                uint64_t below_it = _mm512_cmplt_epi8_mask(two, _mm512_set1_epi8(bound));
                kept = _pext_u64(below_it, 0x5555555555555555u << i % 2);
            } else
                kept = _pdep_u32(_mm512_cmplt_epi32_mask(even[i], _mm512_set1_epi32(bound)), EVEN) |
                       _pdep_u32(_mm512_cmplt_epi32_mask(odd[i], _mm512_set1_epi32(bound)), ODD);
            bits[element] = below[element] ^ ~kept;
        }
    }
}

/* ------------------------------------------------------------------ the first layer: thresholds once, many draws */

typedef struct {
    int64_t units, outputs, window, positions; /* positions: of the product x (inputs, positions, units) */
    int64_t places;                            /* 1, or outputs * window where k and c depend on the position */
    const int32_t *at;                         /* (outputs, window): the positions that are pooled */
    const float *slope, *offset;               /* (places, units) each */
} Law;

/* e of one input, (outputs, units), from its product. */
static void chances(const Law *law, const float *x, float *e)
{
    for (int64_t o = 0; o < law->outputs; o++)
        for (int64_t u = 0; u < law->units; u += 16) {
            __mmask16 some = law->units - u < 16 ? (1u << (law->units - u)) - 1 : 0xFFFF;
            __m512 one = _mm512_setzero_ps(), product = _mm512_set1_ps(1);
            for (int64_t w = 0; w < law->window; w++) {
                int64_t i = o * law->window + w, place = law->places == 1 ? 0 : i;
                __m512 k = _mm512_maskz_loadu_ps(some, law->slope + place * law->units + u);
                __m512 c = _mm512_maskz_loadu_ps(some, law->offset + place * law->units + u);
                __m512 v = _mm512_maskz_loadu_ps(some, x + law->at[i] * law->units + u);
                one = erf16(_mm512_add_ps(_mm512_mul_ps(v, k), c));
                product = _mm512_mul_ps(product, off(one));
            }
            _mm512_mask_storeu_ps(e + o * law->units + u, some, law->window == 1 ? one : pooled(product));
        }
}

/* The thresholds of tiles of 32 inputs; slots (tiles, 32) says which input stands where. */
int nsm_first(const Law *law, const float *x, const int64_t *slots, int64_t tiles, int16_t *thresholds, uint32_t *can, int threads)
{
    const int64_t n = law->outputs * law->units;
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        float *e = aligned_alloc(64, (SLOTS * n * sizeof *e + 63) / 64 * 64);
#pragma omp for reduction(|: failed) /* that all threads come to, whether they have memory or not */
        for (int64_t tile = 0; tile < tiles; tile++) {
            if (!e) {
                failed = 1;
                continue;
            }
            for (int l = 0; l < SLOTS; l++)
                chances(law, x + slots[tile * SLOTS + l] * law->positions * law->units, e + l * n);
            const __m512i even = _mm512_mullo_epi32(
                _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), _mm512_set1_epi32(n));
            const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(n));
            for (int64_t i = 0; i < n; i++)
                can[tile * n + i] = store_thresholds(thresholds + (tile * n + i) * SLOTS,
                    _mm512_i32gather_ps(even, e + i, 4), _mm512_i32gather_ps(odd, e + i, 4));
        }
        free(e);
    }
    return failed;
}

/* States from thresholds that groups share: group g has those of tile g mod tiles. */
void nsm_draw(const Noise *noise, const int16_t *thresholds, const uint32_t *can, int64_t tiles, int64_t n, uint32_t *bits)
{
#pragma omp parallel for num_threads(noise->threads)
    for (int64_t g = 0; g < noise->groups; g++)
        draw(noise, g, thresholds + g % tiles * n * SLOTS, can + g % tiles * n, n, bits + g * n);
}

/* ------------------------------------------------------------------ the layers above: states to states */

typedef struct {
    Law law;                           /* its `at` are offsets into the padded picture */
    int64_t below;                     /* how many states there are below */
    int64_t channels, height, width;   /* of the picture that they make */
    int64_t top, left, rows, columns;  /* of the padded picture */
    int64_t steps, digits, together;   /* together: groups in one task */
    int64_t bytes, bound;              /* of the integers that blank out states; no bytes where units draw themselves */
    const int32_t *wide;               /* NULL, or which state stands where in the picture */
    const int32_t *taps;               /* (steps,): offset of every group of five states that a unit sees */
    const int16_t *tables;             /* (digits, units/4, steps, 4, 32) */
    const int32_t *outside;            /* (digits, outputs * window, units), or NULL: what to add where z = 0 */
} Layer;

/* Five states to a number from 0 to 31, in each slot; what is outside the picture reads as -1. */
static void index_states(const Layer *layer, const uint32_t *bits, __m512i *index)
{
    const int64_t fives = (layer->channels + 4) / 5;
    if (layer->rows != layer->height || layer->columns != layer->width)
        memset(index, 0, layer->rows * layer->columns * fives * sizeof *index);
    for (int64_t y = 0, i = 0; y < layer->height; y++)
        for (int64_t x = 0; x < layer->width; x++, i += layer->channels) {
            __m512i *to = index + ((y + layer->top) * layer->columns + x + layer->left) * fives;
            for (int64_t f = 0; f < layer->channels; f += 5) {
                __m512i v = _mm512_setzero_si512();
                for (int b = 0; b < 5 && f + b < layer->channels; b++) {
                    uint32_t word = bits[layer->wide ? layer->wide[i + f + b] : i + f + b];
                    v = _mm512_or_si512(v, _mm512_maskz_set1_epi16(word, 1 << b));
                }
                *to++ = v;
            }
        }
}

/* The products of four units with what is at four places, as numbers of one digit: (units, places, even and odd). */
static inline void products(const __m512i *tables, const int32_t *taps, int64_t steps, const __m512i *const at[PLACES],
                            __m512i sum[UNITS][PLACES][2])
{
    for (int u = 0; u < UNITS; u++)
        for (int p = 0; p < PLACES; p++) sum[u][p][0] = sum[u][p][1] = _mm512_setzero_si512();
    for (int64_t begin = 0; begin < steps; begin += CHUNK) {
        int64_t end = begin + CHUNK < steps ? begin + CHUNK : steps;
        __m512i part[UNITS][PLACES];
        for (int u = 0; u < UNITS; u++)
            for (int p = 0; p < PLACES; p++) part[u][p] = _mm512_setzero_si512();
        for (int64_t i = begin; i < end; i++) {
            __m512i v[PLACES];
            for (int p = 0; p < PLACES; p++) v[p] = at[p][taps[i]];
            for (int u = 0; u < UNITS; u++) {
                __m512i table = tables[i * UNITS + u];
                __asm__("" : "+v"(table)); /* load it once, not in each of the four lookups */
                for (int p = 0; p < PLACES; p++) {
                    part[u][p] = _mm512_add_epi16(part[u][p], _mm512_permutexvar_epi16(v[p], table));
                    __asm__("" : "+v"(part[u][p])); /* and add in place */
                }
            }
        }
        for (int u = 0; u < UNITS; u++)
            for (int p = 0; p < PLACES; p++) {
                sum[u][p][0] = _mm512_add_epi32(sum[u][p][0], _mm512_srai_epi32(_mm512_slli_epi32(part[u][p], 16), 16));
                sum[u][p][1] = _mm512_add_epi32(sum[u][p][1], _mm512_srai_epi32(part[u][p], 16));
            }
    }
}

/* Slopes times products, plus offsets, of four units from `unit` on, at four places: t, or u with blank-out at neurons,
 * whose products are those with the states and, a `picture` further on, with the states turned round. */
static inline void sums(const Layer *layer, int64_t picture, int64_t unit, const __m512i *const at[PLACES],
                        const int64_t place[PLACES], __m512 t[UNITS][PLACES][2])
{
    const Law *law = &layer->law;
    const int64_t tiles = (law->units + UNITS - 1) / UNITS, all = law->outputs * law->window;
    for (int64_t i = 0; i < layer->digits * (layer->bytes ? 2 : 1); i++) {
        const int64_t d = i % layer->digits;
        const __m512i *tables = (const __m512i *)layer->tables + (d * tiles + unit / UNITS) * layer->steps * UNITS;
        const __m512i *from[PLACES];
        for (int p = 0; p < PLACES; p++) from[p] = at[p] + i / layer->digits * picture;
        __m512i sum[UNITS][PLACES][2];
        products(tables, layer->taps, layer->steps, from, sum);
        for (int u = 0; u < UNITS && unit + u < law->units; u++)
            for (int p = 0; p < PLACES; p++) {
                int64_t here = (law->places == 1 ? 0 : place[p]) * law->units + unit + u;
                __m512 k = _mm512_set1_ps(law->slope[i * law->places * law->units + here]);
                __m512i add = _mm512_set1_epi32(
                    layer->outside ? layer->outside[(d * all + place[p]) * law->units + unit + u] : 0);
                for (int h = 0; h < 2; h++) {
                    __m512 before = i ? t[u][p][h] : _mm512_set1_ps(law->offset[here]);
                    __m512 x = _mm512_cvtepi32_ps(_mm512_add_epi32(sum[u][p][h], add));
                    t[u][p][h] = _mm512_add_ps(_mm512_mul_ps(x, k), before);
                }
            }
    }
}

static inline uint32_t not_below_0(const __m512 u[2]) /* the states of 32 slots */
{
    const __m512 zero = _mm512_setzero_ps();
    return _pdep_u32(_mm512_cmp_ps_mask(u[0], zero, _CMP_GE_OQ), EVEN) |
           _pdep_u32(_mm512_cmp_ps_mask(u[1], zero, _CMP_GE_OQ), ODD);
}

typedef struct {
    int16_t *thresholds;
    uint32_t *can, *turned;
    __m512i *index;
} Scratch;

/* Four units without a pool: thresholds, or states, of four outputs, of this group or the next ones, at a time. */
static void single(const Layer *layer, const Scratch *scratch, int64_t picture, int64_t unit, int64_t begin, int64_t end, uint32_t *bits)
{
    const Law *law = &layer->law;
    const __m512i *at[PLACES];
    int64_t place[PLACES], element[PLACES];
    for (int p = 0; p < PLACES; p++) {
        int64_t item = begin + p < end ? begin + p : end - 1, group = item / law->outputs;
        place[p] = item % law->outputs;
        at[p] = scratch->index + group * (layer->bytes ? 2 : 1) * picture + law->at[place[p]];
        element[p] = item * law->units + unit;
    }
    __m512 t[UNITS][PLACES][2];
    sums(layer, picture, unit, at, place, t);
    for (int p = 0; p < PLACES && begin + p < end; p++)
        for (int u = 0; u < UNITS && unit + u < law->units; u++)
            if (layer->bytes)
                bits[element[p] + u] = not_below_0(t[u][p]);
            else
                scratch->can[element[p] + u] =
                    store_thresholds(scratch->thresholds + (element[p] + u) * SLOTS, erf16(t[u][p][0]), erf16(t[u][p][1]));
}

/* Four units for one output, the maximum over a window. */
static void maximum(const Layer *layer, const Scratch *scratch, int64_t picture, int64_t unit, int64_t item, uint32_t *bits)
{
    const Law *law = &layer->law;
    const int64_t output = item % law->outputs;
    const __m512i *index = scratch->index + item / law->outputs * (layer->bytes ? 2 : 1) * picture;
    __m512 product[UNITS][2];
    uint32_t any[UNITS] = {0};
    for (int u = 0; u < UNITS; u++) product[u][0] = product[u][1] = _mm512_set1_ps(1);
    for (int64_t begin = 0; begin < law->window; begin += PLACES) {
        const __m512i *at[PLACES];
        int64_t place[PLACES];
        for (int p = 0; p < PLACES; p++) {
            place[p] = output * law->window + (begin + p < law->window ? begin + p : law->window - 1);
            at[p] = index + law->at[place[p]];
        }
        __m512 t[UNITS][PLACES][2];
        sums(layer, picture, unit, at, place, t);
        for (int u = 0; u < UNITS && unit + u < law->units; u++)
            for (int p = 0; p < PLACES && begin + p < law->window; p++)
                if (layer->bytes)
                    any[u] |= not_below_0(t[u][p]);
                else
                    for (int h = 0; h < 2; h++) product[u][h] = _mm512_mul_ps(product[u][h], off(erf16(t[u][p][h])));
    }
    for (int u = 0; u < UNITS && unit + u < law->units; u++) {
        int64_t element = item * law->units + unit + u;
        if (layer->bytes)
            bits[element] = any[u];
        else
            scratch->can[element] = store_thresholds(scratch->thresholds + element * SLOTS, pooled(product[u][0]), pooled(product[u][1]));
    }
}

/* The drawn states (groups, outputs * units) of a layer and the pool after it, from the states below, which the groups
 * use in turn. */
int nsm_layer(const Layer *layer, const Noise *noise, const uint32_t *below, int64_t tiles, uint32_t *bits)
{
    const Law *law = &layer->law;
    const int64_t n = law->outputs * law->units, under = layer->below;
    const int64_t picture = layer->rows * layer->columns * ((layer->channels + 4) / 5), together = layer->together;
    const int64_t pictures = layer->bytes ? 2 : 1;
    int failed = 0;
#pragma omp parallel num_threads(noise->threads)
    {
        const int64_t drawn = layer->bytes ? 1 : together * n, blanked = layer->bytes ? under : 1; /* what is in use */
        Scratch scratch = {aligned_alloc(64, drawn * 64), aligned_alloc(64, (drawn * 4 + 63) / 64 * 64),
                           aligned_alloc(64, (blanked * 4 + 63) / 64 * 64),
                           aligned_alloc(64, together * pictures * picture * 64)};
        const int ready = scratch.thresholds && scratch.can && scratch.turned && scratch.index;
#pragma omp for schedule(dynamic) reduction(|: failed)
        for (int64_t first = 0; first < noise->groups; first += together) {
            if (!ready) {
                failed = 1;
                continue;
            }
            int64_t here = noise->groups - first < together ? noise->groups - first : together;
            uint32_t *to = bits + first * n;
            for (int64_t g = 0; g < here; g++) {
                const uint32_t *states = below + (first + g) % tiles * under;
                __m512i *index = scratch.index + g * pictures * picture;
                index_states(layer, states, index);
                if (layer->bytes) {
                    turn(noise, first + g, layer->bytes, layer->bound, states, under, scratch.turned);
                    index_states(layer, scratch.turned, index + picture);
                }
            }
            if (law->window == 1) {
                for (int64_t unit = 0; unit < law->units; unit += UNITS)
                    for (int64_t item = 0; item < here * law->outputs; item += PLACES)
                        single(layer, &scratch, picture, unit, item, here * law->outputs, to);
            } else
                for (int64_t item = 0; item < here * law->outputs; item++)
                    for (int64_t unit = 0; unit < law->units; unit += UNITS)
                        maximum(layer, &scratch, picture, unit, item, to);
            for (int64_t g = 0; g < here && !layer->bytes; g++)
                draw(noise, first + g, scratch.thresholds + g * n * SLOTS, scratch.can + g * n, n, to + g * n);
        }
        free(scratch.thresholds), free(scratch.can), free(scratch.turned), free(scratch.index);
    }
    return failed;
}

/* ------------------------------------------------------------------ out again */

/* -1 and +1 in 16 or 32 bits, a row for every slot that has one (rows: -1 for none). */
void nsm_unpack(const uint32_t *bits, int64_t groups, int64_t n, const int64_t *rows, int bytes, void *out, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (int64_t g = 0; g < groups; g++)
        for (int l = 0; l < SLOTS; l++) {
            int64_t row = rows[g * SLOTS + l];
            if (row < 0) continue;
            const uint32_t *from = bits + g * n;
            if (bytes == 2) {
                uint16_t *to = (uint16_t *)out + row * n;
                for (int64_t i = 0; i < n; i++) to[i] = (from[i] >> l & 1) ? 0x3F80 : 0xBF80; /* bfloat16 */
            } else {
                uint32_t *to = (uint32_t *)out + row * n;
                for (int64_t i = 0; i < n; i++) to[i] = (from[i] >> l & 1) ? 0x3F800000 : 0xBF800000;
            }
        }
}
