// The kernels of sums in device memory, and of digests. kernels.ptx is made of this file (see kernels.py), and every
// NVIDIA driver compiles that for its device when it loads it: no user needs a CUDA compiler.
//
// A message lies in a block of device memory; leaves are arrays of a framework, wherever it put them. Numbers are added
// in the order of the parts, rounded to nearest even, and subnormal numbers stay what they are, exactly as numpy does
// it: compile without fast math, and with -fmad=false.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define MOST 128     // parts at most; job/shm/records.py has no room for more members either
#define THREADS 256  // of a block, in all kernels that have shared memory
#define STRETCH 8192 // numbers of a leaf that one block handles
#define BLOCK 1024   // of exact sums: reduction/exact.py

struct Parts {
    u64 at[MOST];
};

// ── slices of messages ──

template <typename Number, Number (*plus)(Number, Number)>
__device__ void add(const Parts &parts, u32 count, Number *out, u64 size) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += (u64)gridDim.x * blockDim.x) {
        Number sum = ((const Number *)parts.at[0])[i];
        for (u32 part = 1; part < count; part++) sum = plus(sum, ((const Number *)parts.at[part])[i]);
        out[i] = sum;
    }
}

__device__ float plus_f32(float a, float b) { return __fadd_rn(a, b); }
__device__ u32 plus_i32(u32 a, u32 b) { return a + b; }

extern "C" __global__ void add_f32(Parts parts, u32 count, u64 out, u64 size) {
    add<float, plus_f32>(parts, count, (float *)out, size);
}

extern "C" __global__ void add_i32(Parts parts, u32 count, u64 out, u64 size) {
    add<u32, plus_i32>(parts, count, (u32 *)out, size);
}

__device__ float widened(u16 half) { return __uint_as_float((u32)half << 16); }

// bf16, the upper half of a float32: added in float32 and rounded once, to nearest even; every NaN becomes the same.
extern "C" __global__ void add_bf16(Parts parts, u32 count, u64 out, u64 size) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += (u64)gridDim.x * blockDim.x) {
        float sum = widened(((const u16 *)parts.at[0])[i]);
        for (u32 part = 1; part < count; part++) sum = __fadd_rn(sum, widened(((const u16 *)parts.at[part])[i]));
        u32 bits = __float_as_uint(sum);
        u32 kept = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        ((u16 *)out)[i] = (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : (u16)kept;
    }
}

// ── leaves and messages ──

// A block handles one stretch of one leaf: `stretches` has the leaf of each, and its number within that leaf.
struct Leaves {
    const u64 *address; // of each leaf, now
    const u64 *offset;  // of each leaf in the message
    const u64 *size;
    const uint2 *stretches;
};

struct Stretch {
    u32 leaf;
    u64 begin, at; // its first number in the leaf, and in the message
    u32 count;
};

__device__ Stretch stretch_of(const Leaves &leaves) {
    uint2 found = leaves.stretches[blockIdx.x];
    u64 begin = (u64)found.y * STRETCH, left = leaves.size[found.x] - begin;
    return {found.x, begin, leaves.offset[found.x] + begin, (u32)(left < STRETCH ? left : STRETCH)};
}

// Loads several numbers before the first of them is used, so that many are on their way.
#define MANY 8

template <bool more> __device__ void pack(const Leaves &leaves, u64 part) {
    Stretch here = stretch_of(leaves);
    const float *source = (const float *)leaves.address[here.leaf] + here.begin;
    float *into = (float *)part + here.at;
    for (u32 begin = threadIdx.x; begin < here.count; begin += MANY * THREADS) {
        float found[MANY], before[MANY];
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            u32 i = begin + k * THREADS;
            found[k] = i < here.count ? source[i] : 0;
            if (more) before[k] = i < here.count ? into[i] : 0;
        }
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            u32 i = begin + k * THREADS;
            if (i < here.count) into[i] = more ? __fadd_rn(before[k], found[k]) : found[k];
        }
    }
}

// The leaves of a lane become a message, or are added to it.
extern "C" __global__ void pack_f32(Leaves leaves, u64 part) { pack<false>(leaves, part); }
extern "C" __global__ void pack_more_f32(Leaves leaves, u64 part) { pack<true>(leaves, part); }

// Where the sum of a message's numbers is: in all parts, to be added up, or, if `slices` is not 0, in the part of the
// member that has added the slice that the number is in (`slices`: how many numbers the slices divide).
template <typename Number, Number (*plus)(Number, Number)> struct Sums {
    const Parts &parts;
    u32 count;
    u64 slices;
    u32 owner;
    u64 end; // of the owner's slice

    __device__ Sums(const Parts &parts, u32 count, u64 slices, u64 at) : parts(parts), count(count), slices(slices) {
        if (!slices) return;
        owner = (u32)(at * count / slices);
        while (owner && at < slices * owner / count) owner--;
        end = slices * (owner + 1) / count;
    }

    // The numbers asked for may only go up.
    __device__ Number operator()(u64 at) {
        if (slices) {
            while (at >= end) end = slices * (++owner + 1) / count;
            return ((const Number *)parts.at[owner])[at];
        }
        Number sum = ((const Number *)parts.at[0])[at];
        for (u32 part = 1; part < count; part++) sum = plus(sum, ((const Number *)parts.at[part])[at]);
        return sum;
    }
};

// The sums of a message go to leaves; `odd`, if it is not 0, gets a 1 for each leaf with NaN or Inf.
extern "C" __global__ void unpack_f32(Leaves leaves, Parts parts, u32 count, u64 slices, u64 odd) {
    Stretch here = stretch_of(leaves);
    Sums<float, plus_f32> sums(parts, count, slices, here.at + threadIdx.x);
    float *into = (float *)leaves.address[here.leaf] + here.begin;
    bool bad = false;
    for (u32 begin = threadIdx.x; begin < here.count; begin += MANY * THREADS) {
        float sum[MANY];
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            u32 i = begin + k * THREADS;
            sum[k] = i < here.count ? sums(here.at + i) : 0;
        }
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            u32 i = begin + k * THREADS;
            bad |= (__float_as_uint(sum[k]) & 0x7F800000) == 0x7F800000;
            if (i < here.count) into[i] = sum[k];
        }
    }
    if (odd && bad) ((u32 *)odd)[here.leaf] = 1;
}

// ── exact sums: reduction/exact.py, line by line ──

#define FRESH -32768
#define OCTAVE 5
#define FALL (1 << OCTAVE)
#define LOW -125
#define HIGH 96
#define HEADROOM 3

// A block of threads handles one block of numbers: `leaf_of` has its leaf, `first` each leaf's first block.
struct Grid {
    const u32 *leaf_of, *first;
    const int *level;
    const float *on, *off; // factors that bring the values of a block onto the grid, and off it
    u64 blocks, size;      // `size`: how many numbers of a message are before the notes
    u32 digits, octaves;
};

struct Block {
    u32 leaf, count;
    u64 begin, at;
};

__device__ Block block_of(const Leaves &leaves, const Grid &grid) {
    u32 leaf = grid.leaf_of[blockIdx.x];
    u64 begin = (u64)(blockIdx.x - grid.first[leaf]) * BLOCK, left = leaves.size[leaf] - begin;
    return {leaf, (u32)(left < BLOCK ? left : BLOCK), begin, leaves.offset[leaf] + begin};
}

// Notes of one lane, whose largest magnitude in this block is `top`.
__device__ void note(const Grid &grid, int *notes, u32 top, bool more) {
    if (!more)
        for (u32 i = 0; i <= grid.digits; i++) notes[i] = 0;
    if (top >= 0x7F800000) {
        notes[grid.digits] += 1;
    } else if (top >= 0x00800000) {
        int exponent = (int)(top >> 23) - 1, digit = exponent / (int)grid.octaves;
        int shift = exponent - digit * (int)grid.octaves - 20, mantissa = (int)((top & 0x007FFFFF) | 0x00800000);
        int down = shift < 0 ? -shift : 0;
        notes[digit] += shift >= 0 ? mantissa << shift : (mantissa + (1 << down) - 1) >> down;
    }
}

template <bool more> __device__ void pack_exact(const Leaves &leaves, const Grid &grid, u64 part) {
    __shared__ u32 tops[THREADS / 32];
    Block here = block_of(leaves, grid);
    const float *source = (const float *)leaves.address[here.leaf] + here.begin;
    int *into = (int *)part + here.at;
    float values[BLOCK / THREADS];
    int before[BLOCK / THREADS];
    u32 top = 0;
#pragma unroll
    for (int k = 0; k < BLOCK / THREADS; k++) {
        u32 i = threadIdx.x + k * THREADS;
        values[k] = i < here.count ? source[i] : 0;
        if (more) before[k] = i < here.count ? into[i] : 0;
    }
#pragma unroll
    for (int k = 0; k < BLOCK / THREADS; k++) top = max(top, __float_as_uint(values[k]) & 0x7FFFFFFF);
    for (int other = 16; other; other >>= 1) top = max(top, __shfl_xor_sync(0xFFFFFFFF, top, other));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int k = 0; k < THREADS / 32; k++) top = max(top, tops[k]);
    if (threadIdx.x == 0)
        note(grid, (int *)part + grid.size + (u64)blockIdx.x * (grid.digits + 1), top, more);
    // A block that does not fit its grid adds nothing: its notes will tell, and the round is void.
    float scale = grid.on[blockIdx.x];
    bool fits = top >= 0x00800000 && top < 0x7F800000 && scale != 0 &&
                __fmul_rn(__uint_as_float(top), scale) < 2147483648.0f;
#pragma unroll
    for (int k = 0; k < BLOCK / THREADS; k++) {
        u32 i = threadIdx.x + k * THREADS;
        int units = fits ? __float2int_rn(__fmul_rn(values[k], scale)) : 0;
        if (i < here.count) into[i] = more ? before[k] + units : units;
    }
}

extern "C" __global__ void pack_exact(Leaves leaves, Grid grid, u64 part) { pack_exact<false>(leaves, grid, part); }
extern "C" __global__ void pack_more_exact(Leaves leaves, Grid grid, u64 part) {
    pack_exact<true>(leaves, grid, part);
}

// From integers back to float32: rounded once, to nearest even.
extern "C" __global__ void unpack_exact(Leaves leaves, Grid grid, Parts parts, u32 count, u64 slices) {
    Block here = block_of(leaves, grid);
    Sums<u32, plus_i32> sums(parts, count, slices, here.at + threadIdx.x);
    float *into = (float *)leaves.address[here.leaf] + here.begin, unit = grid.off[blockIdx.x];
    u32 found[BLOCK / THREADS];
#pragma unroll
    for (int k = 0; k < BLOCK / THREADS; k++) {
        u32 i = threadIdx.x + k * THREADS;
        found[k] = i < here.count ? sums(here.at + i) : 0;
    }
#pragma unroll
    for (int k = 0; k < BLOCK / THREADS; k++) {
        u32 i = threadIdx.x + k * THREADS;
        if (i < here.count) into[i] = __fmul_rn(__int2float_rn((int)found[k]), unit);
    }
}

// How a round is judged: `top` and `jumped` have a number for each leaf, `need` one for each block.
struct Judge {
    const double *worth;
    int *need, *top, *jumped;
    u32 *bad, *redo;
    double most;
    long long room;
};

extern "C" __global__ void judge(Grid grid, Judge judge, Parts parts, u32 count, u64 slices) {
    u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= grid.blocks) return;
    u64 at = grid.size + block * (grid.digits + 1);
    Sums<u32, plus_i32> sums(parts, count, slices, at);
    double spread = 0;
    for (u32 digit = 0; digit < grid.digits; digit++)
        spread = __dadd_rn(spread, __dmul_rn((double)(int)sums(at + digit), judge.worth[digit]));
    if (sums(at + grid.digits) || spread >= judge.most) *judge.bad = 1;
    long long bits = __double_as_longlong(spread);
    int need = FRESH;
    if (spread > 0) {
        need = (int)(bits >> 52) - (1022 + 31 - HEADROOM);
        need = (need < LOW ? LOW : need > HIGH ? HIGH : need) * FALL;
    }
    u32 leaf = grid.leaf_of[block];
    judge.need[block] = need;
    atomicMax(&judge.top[leaf], need);
    // Numbers that are not negative compare as their bits do. A fresh block's limit is far below all but 0.
    long long limit = (grid.level[block] + (FALL - 1)) >> OCTAVE;
    if (bits >= (long long)((u64)limit << 52) + judge.room) {
        judge.jumped[leaf] = 1;
        *judge.redo = 1;
    }
}

// The grid of the next step; `words`: the verdict, then all levels.
extern "C" __global__ void move(Grid grid, Judge judge, u64 level, u64 on, u64 off, u64 words) {
    u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (block == 0) ((short *)words)[0] = *judge.bad ? 2 : *judge.redo ? 1 : 0;
    if (block >= grid.blocks) return;
    u32 leaf = grid.leaf_of[block];
    int before = grid.level[block], top = judge.top[leaf], need = judge.need[block], now;
    if (*judge.redo) {
        now = judge.jumped[leaf] ? max(before, top) : before;
    } else {
        int fall = top == FRESH ? 0 : min(max(before - top, need != FRESH ? 1 : 0), FALL);
        now = max(before - fall, need);
    }
    ((int *)level)[block] = now;
    ((short *)words)[1 + block] = (short)now;
    int shifted = (int)((u32)((now + (FALL - 1)) >> OCTAVE) << 23), one = 127 << 23; // where a float32 has its exponent
    ((int *)on)[block] = now == FRESH ? 0 : one - shifted;
    ((int *)off)[block] = now == FRESH ? 0 : one + shifted;
}

// ── digests: state/digest.py ──

#define GOLDEN 0x9E3779B1u
#define SEED 0x85EBCA77u
#define FIRST 0x7FEB352Du
#define SECOND 0x846CA68Bu

// The two sums of the words of each leaf; here a leaf's size is in bytes, and a stretch is one of words.
extern "C" __global__ void digest(Leaves leaves, u64 out) {
    __shared__ u32 sums[2][THREADS / 32];
    uint2 found = leaves.stretches[blockIdx.x];
    u64 nbytes = leaves.size[found.x], begin = (u64)found.y * STRETCH, whole = nbytes / 4;
    const u32 *words = (const u32 *)leaves.address[found.x];
    u32 one = 0, two = 0;
    for (u32 first = threadIdx.x; first < STRETCH; first += MANY * THREADS) {
        u32 word[MANY];
        bool inside[MANY];
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            u64 i = begin + first + k * THREADS;
            inside[k] = i < whole;
            word[k] = inside[k] ? words[i] : 0;
            if (i == whole && nbytes % 4) { // the last word is filled up with zeros
                inside[k] = true;
                for (u32 byte = 0; byte < nbytes % 4; byte++)
                    word[k] |= (u32)((const unsigned char *)words)[4 * whole + byte] << 8 * byte;
            }
        }
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            u32 key = (u32)(begin + first + k * THREADS) * GOLDEN + SEED, x = word[k] ^ key;
            x = (x ^ x >> 16) * FIRST;
            x = (x ^ x >> 15) * SECOND;
            if (inside[k]) {
                one += x ^ x >> 16;
                two += x * (key | 1);
            }
        }
    }
    for (int other = 16; other; other >>= 1) {
        one += __shfl_xor_sync(0xFFFFFFFF, one, other);
        two += __shfl_xor_sync(0xFFFFFFFF, two, other);
    }
    if (threadIdx.x % 32 == 0) {
        sums[0][threadIdx.x / 32] = one;
        sums[1][threadIdx.x / 32] = two;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        u32 sum = 0;
        for (int k = 0; k < THREADS / 32; k++) sum += sums[threadIdx.x][k];
        atomicAdd((u32 *)out + 2 * found.x + threadIdx.x, sum);
    }
}
