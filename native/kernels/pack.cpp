// Packing of ggml blocks and plain elements into the formats of plan.h.
// ggml layouts (ggml-common.h), 32 inputs of one row each, low nibbles first half, high nibbles second half:
//   q4_0  f16 d, 16 bytes      weight = d * (nibble - 8)
//   q4_1  f16 d, f16 m, 16 bytes   weight = d * nibble + m
//   q8_0  f16 d, 32 int8       weight = d * value
#include <cstring>
#include "quantise.h"

namespace headrace {
namespace {

constexpr int64_t GROUP = 32, LANES = 16;

uint16_t read_u16(const uint8_t* p) {
    uint16_t value;
    std::memcpy(&value, p, 2);
    return value;
}

void write_u16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, 2); }

// -8 * x. Three steps up in the exponent; from a subnormal, shifts. False when it overflows; infinity and NaN are refused too.
bool times_minus_8(uint16_t x, uint16_t& out) {
    const uint16_t sign = uint16_t((x & 0x8000u) ^ 0x8000u);
    uint32_t exponent = (x >> 10) & 31u, fraction = x & 0x3FFu;
    if (exponent == 31) return false;
    if (exponent == 0) {
        uint32_t value = fraction << 3;  // units of 2^-24, exact
        if (value < 0x400u) {
            out = uint16_t(sign | value);
            return true;
        }
        exponent = 1;
        for (; value >= 0x800u; value >>= 1) ++exponent;  // bits shifted out are zeros: value is fraction * 8 with at most 13 bits
        out = uint16_t(sign | (exponent << 10) | (value & 0x3FFu));
        return true;
    }
    exponent += 3;
    if (exponent >= 31) return false;
    out = uint16_t(sign | (exponent << 10) | fraction);
    return true;
}

// Nibble of input i of a ggml 4-bit block.
uint8_t ggml_nibble(const uint8_t* bytes, int64_t i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }

bool pack_q4_lane(bool has_minimum, const uint8_t* source, int64_t lane, uint8_t* group) {
    const uint16_t scale = read_u16(source);
    uint16_t minimum;
    if (has_minimum) {
        minimum = read_u16(source + 2);
    } else if (!times_minus_8(scale, minimum)) {
        return false;
    }
    const uint8_t* bytes = source + (has_minimum ? 4 : 2);
    for (int64_t j = 0; j < 4; ++j)
        for (int64_t i = 0; i < 4; ++i)
            group[j * 64 + lane * 4 + i] = uint8_t(ggml_nibble(bytes, 8 * j + i) | ggml_nibble(bytes, 8 * j + 4 + i) << 4);
    write_u16(group + 256 + 2 * lane, scale);
    write_u16(group + 288 + 2 * lane, minimum);
    return true;
}

void pack_q8_lane(const uint8_t* source, int64_t lane, uint8_t* group) {
    for (int64_t j = 0; j < 8; ++j)
        for (int64_t i = 0; i < 4; ++i) group[j * 64 + lane * 4 + i] = uint8_t(source[2 + 4 * j + i] ^ 0x80u);
    write_u16(group + 512 + 2 * lane, read_u16(source));
}

int64_t element_bytes(Source source) { return source == Source::f32 ? 4 : 2; }

int64_t block_bytes(Format format, int64_t k) {
    switch (format) {
        case Format::q4: return k / GROUP * 320;
        case Format::q8: return k / GROUP * 544;
        case Format::f32: return k * LANES * 4;
        default: return k * LANES * 2;
    }
}

bool pack_row(Source source, const uint8_t* row, int64_t k, int64_t lane, uint8_t* block) {
    const int64_t groups = k / GROUP;
    switch (source) {
        case Source::q4_0:
        case Source::q4_1: {
            const bool has_minimum = source == Source::q4_1;
            for (int64_t g = 0; g < groups; ++g)
                if (!pack_q4_lane(has_minimum, row + g * (has_minimum ? 20 : 18), lane, block + g * 320)) return false;
            return true;
        }
        case Source::q8_0:
            for (int64_t g = 0; g < groups; ++g) pack_q8_lane(row + g * 34, lane, block + g * 544);
            return true;
        default: {
            const int64_t size = element_bytes(source);
            for (int64_t i = 0; i < k; ++i) std::memcpy(block + (i * LANES + lane) * size, row + i * size, size_t(size));
            return true;
        }
    }
}

// Rows of another type than the block's, lossy.
bool convert_block(Source source, Format target, const uint8_t* const* rows, int count, int64_t k, uint8_t* block) {
    if (target == Format::bf16) {
        for (int64_t i = 0; i < k; ++i)
            for (int lane = 0; lane < count; ++lane) write_u16(block + (i * LANES + lane) * 2, bf16_bits(element(source, rows[lane], i)));
        return true;
    }
    float x[GROUP][LANES] = {};
    for (int64_t g = 0; g < k / GROUP; ++g) {
        for (int lane = 0; lane < count; ++lane) {
            float values[GROUP];
            dequantise_group(source, rows[lane], g, values);
            for (int64_t i = 0; i < GROUP; ++i) x[i][lane] = values[i];
        }
        const bool done = target == Format::q4 ? quantise_q4(x, count, block + g * 320) : quantise_q8(x, count, block + g * 544);
        if (!done) return false;
    }
    return true;
}

}  // namespace

Format packed_format(Source source) {
    switch (source) {
        case Source::q4_0:
        case Source::q4_1: return Format::q4;
        case Source::q8_0: return Format::q8;
        case Source::f16: return Format::f16;
        case Source::bf16: return Format::bf16;
        case Source::f32: break;
    }
    return Format::f32;
}

int64_t packed_bytes(Format format, int64_t n, int64_t k) { return (n + LANES - 1) / LANES * block_bytes(format, k); }

int64_t source_row_bytes(Source source, int64_t k) {
    switch (source) {
        case Source::q4_0: return k % GROUP ? -1 : k / GROUP * 18;
        case Source::q4_1: return k % GROUP ? -1 : k / GROUP * 20;
        case Source::q8_0: return k % GROUP ? -1 : k / GROUP * 34;
        case Source::f32: return k * 4;
        default: return k * 2;
    }
}

bool can_pack(Source source, Format target) {
    if (target == packed_format(source)) return true;
    const bool floats = source == Source::f32 || source == Source::f16 || source == Source::bf16;
    switch (target) {
        case Format::q4: return floats || source == Source::q8_0;
        case Format::q8: return floats;
        case Format::bf16: return floats;
        default: return false;
    }
}

bool pack_rows(Source source, Format target, const uint8_t* data, const int64_t* row_order, int64_t num_rows, int64_t k,
               uint8_t* packed, int64_t first_block, int64_t block_step) {
    const int64_t row_bytes = source_row_bytes(source, k), bytes = block_bytes(target, k);
    for (int64_t first = 0; first < num_rows; first += LANES) {
        uint8_t* block = packed + (first_block + first / LANES * block_step) * bytes;
        const int64_t count = num_rows - first < LANES ? num_rows - first : LANES;
        if (count < LANES) std::memset(block, 0, size_t(bytes));
        const uint8_t* rows[LANES];
        for (int64_t lane = 0; lane < count; ++lane)
            rows[lane] = data + (row_order == nullptr ? first + lane : row_order[first + lane]) * row_bytes;
        if (target != packed_format(source)) {
            if (!convert_block(source, target, rows, int(count), k, block)) return false;
            continue;
        }
        for (int64_t lane = 0; lane < count; ++lane)
            if (!pack_row(source, rows[lane], k, lane, block)) return false;
    }
    return true;
}

}  // namespace headrace
