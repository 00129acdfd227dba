// Functions beside the executor: packing and tables for weight loading, and every kernel by ISA name for the parity tests.
// Kernels trust their arguments; here each size is checked against the buffer it speaks of, and a mismatch is a ValueError.
// Packing works on addresses (a mapped file, a reserved region), so there the caller vouches for the extents.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using namespace headrace;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using KvMemory = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // float32, or uint16 that holds bfloat16
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr int64_t MAX_DIM = int64_t{1} << 31;  // products of two sizes and an element size stay within int64

void require(bool ok, const char* what) {
    if (!ok) throw nb::value_error(what);
}

const Kernels& kernels_by_name(const std::string& isa) {
    const Kernels* kernels = select_kernels(isa.c_str());
    require(kernels != nullptr, "this CPU has no such ISA level");
    return *kernels;
}

Format checked_format(int32_t format, int64_t k) {
    require(format >= 0 && format <= static_cast<int32_t>(Format::f32), "no such packed format");
    require(k > 0 && k < MAX_DIM, "k is out of range");
    const auto value = static_cast<Format>(format);
    require((value != Format::q4 && value != Format::q8) || k % 32 == 0, "q4 and q8 need k to be a multiple of 32");
    return value;
}

template <class T>
nb::ndarray<nb::numpy, T> new_array(std::initializer_list<size_t> shape) {
    size_t size = 1;
    for (const size_t extent : shape) size *= extent;
    auto data = std::make_unique<T[]>(std::max<size_t>(size, 1));
    nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T>(data.release(), shape.size(), shape.begin(), owner);
}

struct AlignedFree {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using AlignedBytes = std::unique_ptr<uint8_t[], AlignedFree>;
AlignedBytes aligned_bytes(int64_t size) {
    return AlignedBytes(new (std::align_val_t(64)) uint8_t[static_cast<size_t>(std::max<int64_t>(size, 1))]);
}

const float* optional_floats(const std::optional<Floats>& values, int64_t size, const char* what) {
    if (!values) return nullptr;
    require(static_cast<int64_t>(values->size()) == size, what);
    return values->data();
}

// Weight loading

bool pack(int32_t source, uint64_t source_address, std::optional<Longs> row_order, int64_t num_rows, int64_t k, uint64_t target_address,
          int64_t first_block, int64_t block_step, int num_threads, std::optional<int32_t> target) {
    require(source >= 0 && source <= static_cast<int32_t>(Source::f32), "no such source type");
    const auto type = static_cast<Source>(source);
    require(num_rows > 0 && num_rows < MAX_DIM && k > 0 && k < MAX_DIM, "sizes are out of range");
    const int64_t row_bytes = source_row_bytes(type, k);
    require(row_bytes > 0, "k is not a multiple of the format's group of 32");
    const Format format = target ? checked_format(*target, k) : packed_format(type);
    require(can_pack(type, format), "no way from this source to the target format");
    require(source_address != 0 && target_address != 0, "addresses must not be null");
    require(first_block >= 0 && first_block < MAX_DIM && block_step > 0 && block_step < MAX_DIM, "block placement is out of range");
    const int64_t* order = nullptr;
    if (row_order) {
        require(static_cast<int64_t>(row_order->size()) == num_rows, "row_order needs one entry per row");
        order = row_order->data();
        require(std::all_of(order, order + num_rows, [&](int64_t row) { return row >= 0 && row < num_rows; }),
                "row_order names a row past the end");
    }
    const nb::gil_scoped_release released;
    const auto* from = reinterpret_cast<const uint8_t*>(source_address);
    auto* to = reinterpret_cast<uint8_t*>(target_address);
    constexpr int64_t CHUNK_BLOCKS = 16;
    const int64_t num_blocks = (num_rows + 15) / 16, num_chunks = (num_blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    std::atomic<int64_t> next{0};
    std::atomic<bool> exact{true};
    const auto work = [&] {
        for (int64_t chunk = next++; chunk < num_chunks && exact; chunk = next++) {
            const int64_t block = chunk * CHUNK_BLOCKS, row = block * 16, count = std::min(CHUNK_BLOCKS * 16, num_rows - row);
            if (!pack_rows(type, format, order == nullptr ? from + row * row_bytes : from, order == nullptr ? nullptr : order + row, count, k, to,
                           first_block + block * block_step, block_step))
                exact = false;
        }
    };
    std::vector<std::thread> helpers;
    const int64_t wanted = std::clamp<int64_t>(num_threads, 1, std::min<int64_t>(num_chunks, 64));
    try {
        for (int64_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // no thread to be had: this one does it all
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    return exact;
}

int64_t checked_packed_bytes(int32_t format, int64_t n, int64_t k) {
    require(n > 0 && n < MAX_DIM, "n is out of range");
    return packed_bytes(checked_format(format, k), n, k);
}

nb::ndarray<nb::numpy, float> rope_table_array(Doubles inv_freq, int64_t max_len, double attention_factor) {
    require(max_len > 0 && max_len <= int64_t{1} << 24, "max_len is out of range");
    require(inv_freq.size() > 0 && inv_freq.size() <= 4096, "inv_freq is out of range");
    const double* begin = inv_freq.data();
    require(std::all_of(begin, begin + inv_freq.size(), [](double f) { return f >= 0.0 && f <= 16.0; }),
            "inv_freq must lie in 0..16");
    auto table = new_array<float>({static_cast<size_t>(max_len), inv_freq.size(), 2});
    rope_table(begin, static_cast<int64_t>(inv_freq.size()), max_len, attention_factor, table.data());
    return table;
}

// Kernels

nb::ndarray<nb::numpy, uint8_t> op_prepare_row(const std::string& isa, int32_t format, Floats x, std::optional<Floats> norm_weight, float eps) {
    const Kernels& kernels = kernels_by_name(isa);
    const auto k = static_cast<int64_t>(x.size());
    const Format packed = checked_format(format, k);
    const float* weight = optional_floats(norm_weight, k, "norm_weight must be as long as x");
    const int64_t size = kernels.act_bytes(packed, k);
    const AlignedBytes act = aligned_bytes(size);
    std::fill_n(act.get(), size, uint8_t{0});
    kernels.prepare_row(packed, x.data(), weight, eps, k, act.get());
    auto out = new_array<uint8_t>({static_cast<size_t>(size)});
    std::copy_n(act.get(), size, out.data());
    return out;
}

// x [m, k], weight packed [n, k] → [m, n], or [m, n / 2] with silu_mul. residual [m, width] is added. `blocks` lists the ranges
// of output blocks to compute, one kernel call each; none: one call for all.
nb::ndarray<nb::numpy, float> op_linear(const std::string& isa, int32_t format, Bytes weight, FloatRows x, int64_t n, int k_segments,
                                        std::optional<Floats> norm_weight, float eps, std::optional<Floats> bias,
                                        std::optional<FloatRows> residual, bool silu_mul,
                                        const std::optional<std::vector<std::pair<int64_t, int64_t>>>& blocks) {
    const Kernels& kernels = kernels_by_name(isa);
    const auto m = static_cast<int64_t>(x.shape(0)), k = static_cast<int64_t>(x.shape(1));
    const Format packed = checked_format(format, k);
    require(n > 0 && n < MAX_DIM && (!silu_mul || n % 2 == 0), "n is out of range");
    require(k_segments == 1 || k_segments == 2 || k_segments == 4 || k_segments == 8, "k_segments is 1, 2, 4 or 8");
    const int64_t width = silu_mul ? n / 2 : n, num_blocks = (width + 15) / 16;
    const int64_t needed = packed_bytes(packed, silu_mul ? num_blocks * 32 : n, k);
    require(static_cast<int64_t>(weight.size()) == needed, "weight has the wrong size");
    const float* norm = optional_floats(norm_weight, k, "norm_weight must have k entries");
    const float* bias_values = optional_floats(bias, n, "bias must have n entries");
    require(!residual || (static_cast<int64_t>(residual->shape(0)) == m && static_cast<int64_t>(residual->shape(1)) == width),
            "residual must have the shape of the output");
    auto out = new_array<float>({static_cast<size_t>(m), static_cast<size_t>(width)});
    if (residual) std::copy_n(residual->data(), m * width, out.data());
    else std::fill_n(out.data(), m * width, 0.0f);
    const int64_t stride = kernels.act_bytes(packed, k);
    const AlignedBytes act = aligned_bytes(m * stride);
    std::vector<float*> rows;
    for (int64_t r = 0; r < m; ++r) {
        kernels.prepare_row(packed, x.data() + r * k, norm, eps, k, act.get() + r * stride);
        rows.push_back(out.data() + r * width);
    }
    const uint32_t flags = (residual ? LINEAR_RESIDUAL : 0) | (silu_mul ? LINEAR_SILU_MUL : 0);
    const LinearArgs args{packed, n, k, k_segments, weight.data(), bias_values, flags, act.get(), stride, rows.data(), m};
    for (const auto& [begin, end] : blocks.value_or(std::vector<std::pair<int64_t, int64_t>>{{0, num_blocks}})) {
        require(begin >= 0 && begin <= end && end <= num_blocks, "block range is out of range");
        kernels.linear(args, begin, end);
    }
    return out;
}

nb::ndarray<nb::numpy, float> op_embed_row(const std::string& isa, int32_t format, Bytes weight, int64_t vocab, int64_t hidden,
                                           int64_t token) {
    const Kernels& kernels = kernels_by_name(isa);
    const Format packed = checked_format(format, hidden);
    require(vocab > 0 && vocab < MAX_DIM && token >= 0 && token < vocab, "token is out of range");
    require(static_cast<int64_t>(weight.size()) == packed_bytes(packed, vocab, hidden), "weight has the wrong size");
    auto out = new_array<float>({static_cast<size_t>(hidden)});
    kernels.embed_row(packed, weight.data(), vocab, hidden, token, out.data());
    return out;
}

nb::ndarray<nb::numpy, float> op_rms_norm(const std::string& isa, Floats x, Floats weight, float eps) {
    require(x.size() > 0 && x.size() == weight.size(), "weight must be as long as x");
    auto out = new_array<float>({x.size()});
    kernels_by_name(isa).rms_norm(x.data(), weight.data(), eps, static_cast<int64_t>(x.size()), out.data());
    return out;
}

nb::ndarray<nb::numpy, float> op_rope(const std::string& isa, Floats x, Floats table_row) {
    require(table_row.size() > 0 && table_row.size() % 2 == 0 && table_row.size() <= x.size(), "table_row is cos, sin pairs, one per rotated pair");
    auto out = new_array<float>({x.size()});
    std::copy_n(x.data(), x.size(), out.data());
    kernels_by_name(isa).rope(out.data(), table_row.data(), static_cast<int64_t>(x.size()), static_cast<int64_t>(table_row.size()));
    return out;
}

// strides: block_size, block_stride, layer_stride, head_stride, v_offset (elements). Returns the group; its blocks all lie in memory.
KvGroup checked_group(KvMemory& memory, const std::vector<int64_t>& strides, int64_t layer, int64_t kv_head, int64_t head_dim) {
    const bool is_f32 = memory.dtype() == nb::dtype<float>();
    require(is_f32 || memory.dtype() == nb::dtype<uint16_t>(), "memory is float32, or uint16 for bfloat16");
    require(strides.size() == 5, "strides: block_size, block_stride, layer_stride, head_stride, v_offset");
    for (const int64_t stride : strides) require(stride >= 0 && stride < MAX_DIM, "strides are out of range");
    const int64_t block_size = strides[0], block_stride = strides[1];
    require(block_size > 0 && block_size % 16 == 0 && block_stride > 0, "block_size is a multiple of 16");
    require(layer >= 0 && layer < MAX_DIM && kv_head >= 0 && kv_head < MAX_DIM && head_dim > 0 && head_dim < MAX_DIM, "sizes are out of range");
    const auto extent = [](int64_t a, int64_t b) { return static_cast<__int128>(a) * b; };
    const __int128 inside = extent(layer, strides[2]) + extent(kv_head, strides[3]);
    const __int128 tile = extent(block_size, head_dim);
    require(inside + tile <= block_stride && inside + strides[4] + tile <= block_stride, "the head reaches past the end of a block");
    return {memory.data(), static_cast<int64_t>(memory.size()) / block_stride, block_size, block_stride, strides[2], strides[3],
            strides[4], is_f32 ? KvDtype::f32 : KvDtype::bf16};
}

void op_kv_store(const std::string& isa, KvMemory memory, const std::vector<int64_t>& strides, int64_t layer, int64_t kv_head,
                 int64_t block, int64_t offset, Floats k, Floats v) {
    require(k.size() == v.size(), "k and v must be of one length");
    const auto head_dim = static_cast<int64_t>(k.size());
    const KvGroup kv = checked_group(memory, strides, layer, kv_head, head_dim);
    require(block >= 0 && block < kv.num_blocks && offset >= 0 && offset < kv.block_size, "block or offset is out of range");
    kernels_by_name(isa).kv_store(kv, layer, kv_head, head_dim, block, offset, k.data(), v.data());
}

// q [num_tokens * heads, head_dim], tokens outermost, the first at `position`. in_splits: each split by a call of its own, then merged.
nb::ndarray<nb::numpy, float> op_attention(const std::string& isa, KvMemory memory, const std::vector<int64_t>& strides, int64_t layer,
                                           int64_t kv_head, Ints table, int64_t position, FloatRows q, float scale, int64_t num_tokens,
                                           bool in_splits) {
    const Kernels& kernels = kernels_by_name(isa);
    const auto rows = static_cast<int64_t>(q.shape(0)), head_dim = static_cast<int64_t>(q.shape(1));
    require(num_tokens > 0 && num_tokens <= QUERY_TOKENS && rows > 0 && rows % num_tokens == 0, "q needs a head for each token");
    const KvGroup kv = checked_group(memory, strides, layer, kv_head, head_dim);
    require(position >= 0 && position < MAX_DIM, "position is out of range");
    const int64_t last = position + num_tokens - 1;
    require(position / QUERY_TOKENS == last / QUERY_TOKENS, "the tokens must lie in one run of 16 positions");
    require(last / kv.block_size < static_cast<int64_t>(table.size()), "table is too short for position");
    for (size_t i = 0; i < table.size(); ++i) require(table(i) >= 0 && table(i) < kv.num_blocks, "table names a block past the end");
    auto out = new_array<float>({q.shape(0), q.shape(1)});
    std::vector<float> scratch(static_cast<size_t>(kernels.attention_scratch(rows, head_dim)));
    const int64_t stride = rows / num_tokens * head_dim;
    const AttentionArgs args{q.data(), stride, num_tokens, rows / num_tokens, head_dim, position, table.data(), &kv, layer, kv_head,
                             scale, scratch.data()};
    if (!in_splits) {
        kernels.attention(args, out.data(), stride);
        return out;
    }
    const int64_t num_splits = position / SPLIT_TOKENS + 1, partial = kernels.attention_partial(rows, head_dim);
    std::vector<float> partials(static_cast<size_t>(num_splits * partial));
    for (int64_t split = num_splits - 1; split >= 0; --split) kernels.attention_split(args, split, partials.data() + split * partial);
    kernels.attention_merge(args, partials.data(), partial, out.data(), stride);
    return out;
}

template <void (*Kernels::*FUNCTION)(const float*, const float*, float*, int64_t)>
nb::ndarray<nb::numpy, float> op_pairwise(const std::string& isa, Floats a, Floats b) {
    require(a.size() == b.size(), "both inputs must be of one length");
    auto out = new_array<float>({a.size()});
    (kernels_by_name(isa).*FUNCTION)(a.data(), b.data(), out.data(), static_cast<int64_t>(a.size()));
    return out;
}

int64_t op_argmax(const std::string& isa, Floats x) {
    require(x.size() > 0, "x is empty");
    return kernels_by_name(isa).argmax(x.data(), static_cast<int64_t>(x.size()));
}

float op_log_sum_exp(const std::string& isa, Floats x) {
    require(x.size() > 0, "x is empty");
    return kernels_by_name(isa).log_sum_exp(x.data(), static_cast<int64_t>(x.size()));
}

nb::ndarray<nb::numpy, float> op_gumbel(const std::string& isa, uint64_t seed, uint32_t sample_index, uint32_t position,
                                        std::optional<Ints> ids, int64_t n) {
    require(n >= 0 && n < MAX_DIM, "n is out of range");
    require(!ids || static_cast<int64_t>(ids->size()) == n, "ids must have n entries");
    auto out = new_array<float>({static_cast<size_t>(n)});
    kernels_by_name(isa).gumbel(seed, sample_index, position, ids ? ids->data() : nullptr, n, out.data());
    return out;
}

}  // namespace

void bind_ops(nb::module_& m) {
    m.def("pack", &pack, nb::arg("source"), nb::arg("source_address"), nb::arg("row_order").none(), nb::arg("num_rows"), nb::arg("k"),
          nb::arg("target_address"), nb::arg("first_block") = 0, nb::arg("block_step") = 1, nb::arg("num_threads") = 1,
          nb::arg("target") = nb::none());
    m.def("packed_bytes", &checked_packed_bytes, nb::arg("format"), nb::arg("n"), nb::arg("k"));
    m.def("rope_table", &rope_table_array, nb::arg("inv_freq"), nb::arg("max_len"), nb::arg("attention_factor") = 1.0);
    m.def("op_prepare_row", &op_prepare_row, nb::arg("isa"), nb::arg("format"), nb::arg("x"), nb::arg("norm_weight") = nb::none(),
          nb::arg("eps") = 0.0f);
    m.def("op_linear", &op_linear, nb::arg("isa"), nb::arg("format"), nb::arg("weight"), nb::arg("x"), nb::arg("n"),
          nb::arg("k_segments") = 1, nb::arg("norm_weight") = nb::none(), nb::arg("eps") = 0.0f, nb::arg("bias") = nb::none(),
          nb::arg("residual") = nb::none(), nb::arg("silu_mul") = false, nb::arg("blocks") = nb::none());
    m.def("op_embed_row", &op_embed_row, nb::arg("isa"), nb::arg("format"), nb::arg("weight"), nb::arg("vocab"), nb::arg("hidden"),
          nb::arg("token"));
    m.def("op_rms_norm", &op_rms_norm, nb::arg("isa"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"));
    m.def("op_rope", &op_rope, nb::arg("isa"), nb::arg("x"), nb::arg("table_row"));
    m.def("op_kv_store", &op_kv_store, nb::arg("isa"), nb::arg("memory").noconvert(), nb::arg("strides"), nb::arg("layer"),
          nb::arg("kv_head"), nb::arg("block"), nb::arg("offset"), nb::arg("k"), nb::arg("v"));
    m.def("op_attention", &op_attention, nb::arg("isa"), nb::arg("memory").noconvert(), nb::arg("strides"), nb::arg("layer"),
          nb::arg("kv_head"), nb::arg("table"), nb::arg("position"), nb::arg("q"), nb::arg("scale"), nb::arg("num_tokens") = 1,
          nb::arg("in_splits") = false);
    m.def("op_silu_mul", &op_pairwise<&Kernels::silu_mul>, nb::arg("isa"), nb::arg("gate"), nb::arg("up"));
    m.def("op_add", &op_pairwise<&Kernels::add>, nb::arg("isa"), nb::arg("a"), nb::arg("b"));
    m.def("op_argmax", &op_argmax, nb::arg("isa"), nb::arg("x"));
    m.def("op_log_sum_exp", &op_log_sum_exp, nb::arg("isa"), nb::arg("x"));
    m.def("op_gumbel", &op_gumbel, nb::arg("isa"), nb::arg("seed"), nb::arg("sample_index"), nb::arg("position"),
          nb::arg("ids") = nb::none(), nb::arg("n"));
}
