// Every kernel of every ISA level this processor offers against the portable one, on pseudo-random inputs; no Python, so that it
// runs under an emulator of another processor.
//
//   kernel_check [LEVEL ...]    the levels that must be offered, best first; none: whatever there is
//
// One line per kernel and level with a hash of what it wrote. Levels are contracted to equal bits, so the hashes also agree between
// processors and architectures. Exit code 1 when anything differs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "fma_check.h"
#include "kernels.h"
#include "support.h"

using namespace headrace;

namespace {

constexpr const char* EVERY_LEVEL[] = {"portable", "avx2", "avx_vnni", "avx512_vnni", "neon", "neon_dotprod", "neon_i8mm"};
constexpr Format FORMATS[] = {Format::q4, Format::q8, Format::f16, Format::bf16, Format::f32};
constexpr const char* FORMAT_NAMES[] = {"q4", "q8", "f16", "bf16", "f32"};
constexpr float CANARY = -123456.75f;  // after each output: what is written past the end shows in the hash

struct AlignedFree {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t(64)); }
};

class AlignedBytes {
  public:
    explicit AlignedBytes(int64_t size) : bytes_(new (std::align_val_t(64)) uint8_t[static_cast<size_t>(size)]()), size_(size) {}
    uint8_t* data() const { return bytes_.get(); }
    int64_t size() const { return size_; }

  private:
    std::unique_ptr<uint8_t[], AlignedFree> bytes_;
    int64_t size_;
};

// What a kernel wrote. NaNs become one NaN: their sign and payload are the processor's own.
class Output {
  public:
    void add(float value) {
        uint32_t word;
        std::memcpy(&word, &value, 4);
        add(value == value ? word : 0x7FC00000u);
    }
    void add(const std::vector<float>& values) {
        for (const float value : values) add(value);
    }
    void add(uint32_t word) { words_.push_back(word); }
    void add(uint16_t word) { words_.push_back(word); }
    void add(const uint8_t* bytes, int64_t size) {
        for (int64_t i = 0; i < size; ++i) add(uint32_t(bytes[i]));
    }
    const std::vector<uint32_t>& words() const { return words_; }
    uint64_t hash() const {  // FNV-1a
        uint64_t h = 0xCBF29CE484222325ull;
        for (const uint32_t word : words_) h = (h ^ word) * 0x100000001B3ull;
        return h;
    }

  private:
    std::vector<uint32_t> words_;
};

std::vector<float> with_canary(int64_t n) { return std::vector<float>(static_cast<size_t>(n) + 16, CANARY); }

Source source_of(Format format, bool has_minimum) {
    switch (format) {
        case Format::q4: return has_minimum ? Source::q4_1 : Source::q4_0;
        case Format::q8: return Source::q8_0;
        case Format::f16: return Source::f16;
        case Format::bf16: return Source::bf16;
        case Format::f32: break;
    }
    return Source::f32;
}

// Rows as a model file has them, all values finite. `extreme`: integer weights of largest magnitude with scale 1.
std::vector<uint8_t> raw_rows(Random& random, Source source, int64_t n, int64_t k, bool extreme) {
    std::vector<uint8_t> raw(static_cast<size_t>(n * source_row_bytes(source, k)));
    if (source == Source::f32) {
        const std::vector<float> values = random.numbers(n * k);
        std::memcpy(raw.data(), values.data(), raw.size());
        return raw;
    }
    for (uint8_t& byte : raw) byte = uint8_t(random.bits() >> 24);
    if (source == Source::f16 || source == Source::bf16) {
        for (size_t i = 1; i < raw.size(); i += 2) raw[i] &= 0xBF;
        return raw;
    }
    const size_t block = source == Source::q8_0 ? 34 : source == Source::q4_1 ? 20 : 18, head = source == Source::q4_1 ? 4 : 2;
    for (size_t at = 0; at < raw.size(); at += block) {
        for (size_t i = 1; i < head; i += 2) raw[at + i] &= 0xBF;
        raw[at + 1] &= 0xBB;  // Q4_0's minimum is -8 * scale and must not overflow
        if (!extreme) continue;
        for (size_t i = head; i < block; ++i) raw[at + i] = source == Source::q8_0 ? 0x80 : 0xFF;
        raw[at] = 0;
        raw[at + 1] = 0x3C;
    }
    return raw;
}

struct Weight {
    Format format;
    int64_t n, k;
    AlignedBytes packed;

    Weight(Random& random, Format format_, bool has_minimum, int64_t n_, int64_t k_, bool extreme = false)
        : format(format_), n(n_), k(k_), packed(packed_bytes(format_, n_, k_)) {
        const Source source = source_of(format, has_minimum);
        const std::vector<uint8_t> raw = raw_rows(random, source, n, k, extreme);
        if (!pack_rows(source, packed_format(source), raw.data(), nullptr, n, k, packed.data(), 0, 1)) std::abort();
    }
};

AlignedBytes prepared(const Kernels& kernels, Format format, const std::vector<float>& x, int64_t m, int64_t k, const float* norm) {
    const int64_t stride = kernels.act_bytes(format, k);
    AlignedBytes act(m * stride);
    for (int64_t r = 0; r < m; ++r) kernels.prepare_row(format, x.data() + r * k, norm, 1e-5f, k, act.data() + r * stride);
    return act;
}

void check_prepare(const Kernels& kernels, Format format, Output& output) {
    Random random(1);
    for (const int64_t k : {32, 96, 352, 576}) {
        std::vector<float> x = random.numbers(k, 3.0f);
        for (int64_t i = 0; i < 32; ++i) x[size_t(i)] *= k == 96 ? 0.0f : k == 352 ? 0x1p-110f : k == 576 ? 0x1p+100f : 1.0f;
        const std::vector<float> norm = random.numbers(k);
        for (const float* weight : {static_cast<const float*>(nullptr), norm.data()}) {
            output.add(uint32_t(kernels.act_bytes(format, k)));
            const AlignedBytes act = prepared(kernels, format, x, 1, k, weight);
            output.add(act.data(), act.size());
        }
    }
}

void run_linear(const Kernels& kernels, const Weight& weight, int64_t m, int segments, uint32_t flags, bool has_bias, const std::vector<float>& x,
                Random& random, Output& output) {
    const int64_t width = flags & LINEAR_SILU_MUL ? weight.n / 2 : weight.n, blocks = (width + 15) / 16;
    const AlignedBytes act = prepared(kernels, weight.format, x, m, weight.k, nullptr);
    const std::vector<float> bias = random.numbers(weight.n);
    std::vector<std::vector<float>> out;
    std::vector<float*> rows;
    for (int64_t r = 0; r < m; ++r) {
        out.push_back(with_canary(width));
        const std::vector<float> residual = random.numbers(width);
        std::memcpy(out.back().data(), residual.data(), size_t(width) * 4);
    }
    for (std::vector<float>& row : out) rows.push_back(row.data());
    const LinearArgs args{weight.format, weight.n, weight.k, segments, weight.packed.data(), has_bias ? bias.data() : nullptr, flags,
                          act.data(), kernels.act_bytes(weight.format, weight.k), rows.data(), m};
    kernels.linear(args, 0, blocks / 2);
    kernels.linear(args, blocks / 2, blocks);
    for (const std::vector<float>& row : out) output.add(row);
}

void check_linear(const Kernels& kernels, Format format, Output& output) {
    Random random(2);
    int segments = 1;
    for (const int64_t m : {1, 2, 3, 4, 7, 8, 13, 16, 21})
        for (const int64_t n : {16, 40, 128}) {
            const int64_t k = 32 * int64_t(1 + random.bits() % 17);
            const bool even = (m + n) % 2 == 0;
            const Weight weight(random, format, even, n, k);
            const std::vector<float> x = random.numbers(m * k, even ? 1.0f : 1e-3f);
            run_linear(kernels, weight, m, segments, even ? 0 : LINEAR_RESIDUAL, m % 3 != 0, x, random, output);
            if (n == 128) run_linear(kernels, weight, m, segments, LINEAR_SILU_MUL, m % 3 == 0, x, random, output);
            segments = segments == 8 ? 1 : 2 * segments;
        }
    for (const float sign : {1.0f, -1.0f}) {
        const Weight weight(random, format, false, 32, 128, true);
        run_linear(kernels, weight, 5, 1, 0, false, std::vector<float>(5 * 128, sign * 127.0f), random, output);
    }
    std::vector<float> x = random.numbers(3 * 64);
    x[70] = __builtin_nanf("");
    x[140] = __builtin_huge_valf();
    run_linear(kernels, Weight(random, format, true, 32, 64), 3, 1, 0, false, x, random, output);
}

void check_embed(const Kernels& kernels, Format format, Output& output) {
    Random random(3);
    for (const bool has_minimum : {false, true}) {
        const Weight weight(random, format, has_minimum, 37, 96);
        for (int64_t token = 0; token < weight.n; ++token) {
            std::vector<float> out = with_canary(weight.k);
            kernels.embed_row(format, weight.packed.data(), weight.n, weight.k, token, out.data());
            output.add(out);
        }
    }
}

void check_rms_norm(const Kernels& kernels, Output& output) {
    Random random(4);
    for (const int64_t n : {1, 7, 16, 64, 75, 576, 1003}) {
        const std::vector<float> x = random.numbers(n, 5.0f), weight = random.numbers(n);
        std::vector<float> out = with_canary(n);
        kernels.rms_norm(x.data(), weight.data(), 1e-6f, n, out.data());
        output.add(out);
    }
}

void check_rope(const Kernels& kernels, Output& output) {
    Random random(5);
    for (const int64_t half : {1, 5, 16, 24, 32, 64}) {
        std::vector<double> frequencies;
        for (int64_t i = 0; i < half; ++i) frequencies.push_back(1.0 / double(1 + i * i));
        std::vector<float> table(size_t(2 * half * 3000));
        rope_table(frequencies.data(), half, 3000, 1.0, table.data());
        for (const int64_t position : {0, 1, 777, 2999}) {
            std::vector<float> x = with_canary(2 * half + 6);
            const std::vector<float> values = random.numbers(2 * half + 6);
            std::memcpy(x.data(), values.data(), values.size() * 4);
            kernels.rope(x.data(), table.data() + position * 2 * half, 2 * half + 6, 2 * half);
            output.add(x);
        }
    }
}

// Keys and values of 600 tokens in shuffled blocks; what lies between is NaN, which would show.
template <class E>
struct Paged {
    static constexpr int64_t BLOCK = 32, TOKENS = 600, BLOCKS = (TOKENS + BLOCK - 1) / BLOCK;
    std::vector<E> memory;
    std::vector<int32_t> table;
    KvGroup kv;

    Paged(const Kernels& kernels, Random& random, KvDtype dtype, E nan, int64_t head_dim)
        : memory(size_t(BLOCKS * 8 * BLOCK * head_dim), nan) {
        const int64_t tile = BLOCK * head_dim;
        kv = {memory.data(), BLOCKS, BLOCK, 8 * tile, 4 * tile, 2 * tile, tile, dtype};
        for (int64_t i = 0; i < BLOCKS; ++i) table.push_back(int32_t((i * 7 + 3) % BLOCKS));
        for (int64_t t = 0; t < TOKENS; ++t) {
            const std::vector<float> k = random.numbers(head_dim), v = random.numbers(head_dim);
            kernels.kv_store(kv, 1, 1, head_dim, table[size_t(t / BLOCK)], t % BLOCK, k.data(), v.data());
        }
    }
};

template <class E>
void run_attention(const Kernels& kernels, KvDtype dtype, E nan, Output& output) {
    Random random(6);
    for (const int64_t head_dim : {8, 40, 64}) {
        const Paged<E> cache(kernels, random, dtype, nan, head_dim);
        for (const E value : cache.memory) output.add(value);
        for (const int64_t heads : {1, 3, 9})
            for (const int64_t position : {0, 63, 64, 256, 300, 599}) {
                const int64_t num_tokens = position % 16 == 0 && position + 16 <= 599 ? (position == 64 ? 16 : 5) : 1;
                const int64_t rows = num_tokens * heads, stride = heads * head_dim;
                const std::vector<float> q = random.numbers(rows * head_dim, position % 2 == 0 ? 1.0f : 9.0f);
                std::vector<float> scratch(static_cast<size_t>(kernels.attention_scratch(rows, head_dim)));
                const AttentionArgs args{q.data(), stride, num_tokens, heads, head_dim, position, cache.table.data(), &cache.kv, 1, 1,
                                         0.125f, scratch.data()};
                std::vector<float> whole = with_canary(rows * head_dim), merged = whole;
                kernels.attention(args, whole.data(), stride);
                const int64_t num_splits = position / SPLIT_TOKENS + 1, partial = kernels.attention_partial(rows, head_dim);
                std::vector<float> partials(size_t(num_splits * partial));
                for (int64_t split = num_splits - 1; split >= 0; --split)
                    kernels.attention_split(args, split, partials.data() + split * partial);
                kernels.attention_merge(args, partials.data(), partial, merged.data(), stride);
                output.add(whole);
                output.add(merged);
            }
    }
}

void check_attention_f32(const Kernels& kernels, Output& output) {
    run_attention<float>(kernels, KvDtype::f32, __builtin_nanf(""), output);
}

void check_attention_bf16(const Kernels& kernels, Output& output) {
    run_attention<uint16_t>(kernels, KvDtype::bf16, 0x7FC0, output);
}

void check_silu_mul(const Kernels& kernels, Output& output) {
    Random random(7);
    for (const int64_t n : {1, 15, 16, 31, 1003}) {
        std::vector<float> gate = random.numbers(n, n > 100 ? 60.0f : 2.0f);
        const std::vector<float> up = random.numbers(n);
        if (n == 31) gate[3] = __builtin_huge_valf(), gate[4] = -__builtin_huge_valf(), gate[5] = __builtin_nanf(""), gate[6] = -0.0f;
        std::vector<float> out = with_canary(n);
        kernels.silu_mul(gate.data(), up.data(), out.data(), n);
        output.add(out);
    }
}

void check_add(const Kernels& kernels, Output& output) {
    Random random(8);
    for (const int64_t n : {1, 15, 16, 31, 1003}) {
        const std::vector<float> a = random.numbers(n), b = random.numbers(n);
        std::vector<float> out = with_canary(n);
        kernels.add(a.data(), b.data(), out.data(), n);
        output.add(out);
    }
}

void check_argmax(const Kernels& kernels, Output& output) {
    Random random(9);
    for (const int64_t n : {1, 15, 16, 64, 100, 1003, 5000})
        for (const uint32_t levels : {1u, 9u, 1000u}) {
            std::vector<float> x;
            for (int64_t i = 0; i < n; ++i) x.push_back(random.bits() % 9 == 0 ? __builtin_nanf("") : float(random.bits() % levels));
            output.add(uint32_t(kernels.argmax(x.data(), n)));
        }
}

void check_log_sum_exp(const Kernels& kernels, Output& output) {
    Random random(10);
    for (const int64_t n : {1, 15, 16, 100, 1024, 1025, 5003})
        for (const float spread : {0.0f, 1.0f, 40.0f, 1e20f}) {
            std::vector<float> x = random.numbers(n, spread);
            x[size_t(n / 2)] = -__builtin_huge_valf();
            output.add(kernels.log_sum_exp(x.data(), n));
        }
}

void check_gumbel(const Kernels& kernels, Output& output) {
    Random random(11);
    for (const int64_t n : {1, 15, 16, 100, 5003}) {
        const uint64_t seed = 0x9E3779B97F4A7C15ull * uint64_t(n);
        const uint32_t sample_index = random.bits(), position = random.bits();
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t(random.bits() >> 8));
        for (const int32_t* listed : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(ids.data())}) {
            std::vector<float> noise = with_canary(n);
            kernels.gumbel(seed, sample_index, position, listed, n, noise.data());
            output.add(noise);
        }
    }
}

struct Case {
    std::string name;
    Output (*run)(const Kernels&, Format);
    Format format;
};

template <void (*CHECK)(const Kernels&, Format, Output&)>
Output run(const Kernels& kernels, Format format) {
    Output output;
    CHECK(kernels, format, output);
    return output;
}

template <void (*CHECK)(const Kernels&, Output&)>
Output run(const Kernels& kernels, Format) {
    Output output;
    CHECK(kernels, output);
    return output;
}

std::vector<Case> every_case() {
    std::vector<Case> cases;
    for (int i = 0; i < 5; ++i) {
        const std::string format = std::string(" ") + FORMAT_NAMES[i];
        cases.push_back({"prepare_row" + format, run<check_prepare>, FORMATS[i]});
        cases.push_back({"linear" + format, run<check_linear>, FORMATS[i]});
        cases.push_back({"embed_row" + format, run<check_embed>, FORMATS[i]});
    }
    const Format none = Format::f32;
    cases.push_back({"rms_norm", run<check_rms_norm>, none});
    cases.push_back({"rope", run<check_rope>, none});
    cases.push_back({"attention f32", run<check_attention_f32>, none});
    cases.push_back({"attention bf16", run<check_attention_bf16>, none});
    cases.push_back({"silu_mul", run<check_silu_mul>, none});
    cases.push_back({"add", run<check_add>, none});
    cases.push_back({"argmax", run<check_argmax>, none});
    cases.push_back({"log_sum_exp", run<check_log_sum_exp>, none});
    cases.push_back({"gumbel", run<check_gumbel>, none});
    return cases;
}

std::vector<std::string> offered() {
    std::vector<std::string> names;
    for (const char* const* name = available_isas(); *name != nullptr; ++name) names.push_back(*name);
    return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
    for (const std::string& other : names)
        if (other == name) return true;
    return false;
}

void check_selection(const std::vector<std::string>& wanted, Score& score) {
    const std::vector<std::string> names = offered();
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : " ") + name;
    score.line("-", "levels", (wanted.empty() || wanted == names) && names.back() == "portable", list);
    for (const char* best : {static_cast<const char*>(nullptr), ""}) {
        const Kernels* chosen = select_kernels(best);
        const std::string isa = chosen == nullptr ? "nothing" : chosen->isa;
        score.line("-", "default", isa == names.front(), isa);
    }
    for (const std::string& name : names) {
        const Kernels* chosen = select_kernels(name.c_str());
        score.line("-", "select " + name, chosen != nullptr && chosen->isa == name, "offered");
    }
    for (const char* name : EVERY_LEVEL)
        if (!contains(names, name)) score.line("-", std::string("select ") + name, select_kernels(name) == nullptr, "refused");
    score.line("-", "select mmx", select_kernels("mmx") == nullptr, "refused");
}

void check_case(const Case& item, Score& score) {
    const Output reference = item.run(kernels_portable(), item.format);
    for (const std::string& level : offered()) {
        const Output output = item.run(*select_kernels(level.c_str()), item.format);
        char note[100];
        std::snprintf(note, sizeof note, "%016llx", static_cast<unsigned long long>(output.hash()));
        const auto &a = reference.words(), &b = output.words();
        size_t at = 0;
        while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
        const bool same = a == b;
        if (!same && at < a.size() && at < b.size())
            std::snprintf(note, sizeof note, "word %zu of %zu is %08x, portable's %08x", at, a.size(), b[at], a[at]);
        score.line(level.c_str(), item.name, same, note);
    }
}

}  // namespace

int main(int argc, char** argv) {
    Score score;
    check_selection(std::vector<std::string>(argv + 1, argv + argc), score);
    check_fma(score);
    for (const Case& item : every_case()) check_case(item, score);
    std::printf("%d passed, %d failed\n", score.passed, score.failed);
    return score.failed == 0 ? 0 : 1;
}
