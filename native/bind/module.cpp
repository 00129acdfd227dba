// The Python face of the executor; the kernels' own functions are bound by ops.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "executor.h"

namespace nb = nanobind;

void bind_ops(nb::module_&);     // ops.cpp
void bind_probes(nb::module_&);  // probes.cpp
void bind_queue(nb::module_&);   // queue.cpp
void bind_files(nb::module_&);   // files.cpp

namespace {

using headrace::Executor;
using Header = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A NumPy view of memory that `keeper` keeps alive, also after the executor has let go of it.
template <class T, class Keeper>
nb::object view(const std::shared_ptr<Keeper>& keeper, T* data, std::initializer_list<size_t> shape) {
    nb::capsule owner(new std::shared_ptr<Keeper>(keeper),
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<Keeper>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.begin(), owner));
}

nb::dict outputs(const Executor& executor) {
    const auto out = executor.outputs();
    const auto rows = static_cast<size_t>(executor.step_tokens()->num_logits_rows), top = static_cast<size_t>(out->max_top);
    nb::dict views;
    views["token_ids"] = view(out, out->token_ids.data(), {rows});
    views["logprobs"] = view(out, out->logprobs.data(), {rows});
    views["ranks"] = view(out, out->ranks.data(), {rows});
    views["top_ids"] = view(out, out->top_ids.data(), {rows, top});
    views["top_logprobs"] = view(out, out->top_logprobs.data(), {rows, top});
    return views;
}

nb::object row_tokens(const Executor& executor, int64_t row) {
    const auto rows = executor.rows();
    if (row < 0 || row >= rows->sizes.max_num_seqs) throw std::invalid_argument("no such row");
    return view(rows, rows->tokens_of(row), {static_cast<size_t>(rows->sizes.max_model_len)});
}

nb::object row_table(const Executor& executor, int64_t group, int64_t row) {
    const auto rows = executor.rows();
    if (row < 0 || row >= rows->sizes.max_num_seqs) throw std::invalid_argument("no such row");
    if (group < 0 || group >= rows->num_groups()) throw std::invalid_argument("no such layer group");
    const auto length = rows->table_lengths[static_cast<size_t>(rows->length_index(group, row))];
    return view(rows, rows->table_of(group, row), {static_cast<size_t>(length)});
}

int64_t row_length(const Executor& executor, int64_t row) {
    const auto rows = executor.rows();
    if (row < 0 || row >= rows->sizes.max_num_seqs) throw std::invalid_argument("no such row");
    return rows->num_known[static_cast<size_t>(row)];
}

nb::object step_view(const Executor& executor, std::vector<int32_t> headrace::StepTokens::* field, int64_t headrace::StepTokens::* count) {
    const auto step = executor.step_tokens();
    return view(step, ((*step).*field).data(), {static_cast<size_t>((*step).*count)});
}

void load_plan(Executor& executor, nb::object calls, const std::vector<int64_t>& segment_starts) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(calls.ptr(), &buffer, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    try {
        executor.load_plan(static_cast<const uint8_t*>(buffer.buf), buffer.len, segment_starts);
    } catch (...) {
        PyBuffer_Release(&buffer);
        throw;
    }
    PyBuffer_Release(&buffer);
}

nb::list trace(const Executor& executor) {
    nb::list events;
    for (const auto& e : executor.trace()) events.append(nb::make_tuple(e.thread, e.call, e.phase, e.start_ns, e.end_ns));
    return events;
}

nb::list isa_names() {
    nb::list names;
    for (const char* const* name = headrace::available_isas(); *name != nullptr; ++name) names.append(*name);
    return names;
}

}  // namespace

NB_MODULE(_native, m) {
    m.attr("PLAN_VERSION") = headrace::PLAN_VERSION;
    m.attr("HEADER_VERSION") = headrace::HEADER_VERSION;
    m.attr("MAX_GATES") = headrace::MAX_GATES;
    m.def("available_isas", &isa_names);
    nb::exception<headrace::GateTimeout>(m, "GateTimeoutError", PyExc_TimeoutError);

    nb::class_<Executor>(m, "Executor")
        .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("num_threads"))
        .def_prop_ro("isa", &Executor::isa)
        .def_prop_ro("num_threads", &Executor::num_threads)
        .def_prop_ro("num_steps", &Executor::num_steps)
        .def_prop_ro("num_calls", &Executor::num_calls)
        .def_prop_ro("num_segments", &Executor::num_segments)
        .def("load_plan", &load_plan, nb::arg("calls"), nb::arg("segment_starts"))
        .def(
            "set_rows",
            [](Executor& self, int64_t max_num_seqs, int64_t max_model_len, int64_t max_tokens, int64_t max_logits_rows,
               int64_t max_top_logprobs, int64_t num_groups, const std::vector<int64_t>& max_blocks_per_row) {
                if (num_groups != static_cast<int64_t>(max_blocks_per_row.size()))
                    throw std::invalid_argument("max_blocks_per_row has one number per layer group");
                self.set_rows({max_num_seqs, max_model_len, max_tokens, max_logits_rows, max_top_logprobs, max_blocks_per_row});
            },
            nb::arg("max_num_seqs"), nb::arg("max_model_len"), nb::arg("max_tokens"), nb::arg("max_logits_rows"),
            nb::arg("max_top_logprobs"), nb::arg("num_groups"), nb::arg("max_blocks_per_row"))
        .def(
            "set_kv_group",
            [](Executor& self, int64_t index, uint64_t base_addr, int64_t num_blocks, int64_t block_size, int64_t block_stride,
               int64_t layer_stride, int64_t head_stride, int64_t v_offset, int32_t dtype) {
                if (dtype < 0 || dtype > static_cast<int32_t>(headrace::KvDtype::bf16)) throw std::invalid_argument("unknown KV dtype");
                self.set_kv_group(index, {reinterpret_cast<void*>(base_addr), num_blocks, block_size, block_stride, layer_stride,
                                          head_stride, v_offset, static_cast<headrace::KvDtype>(dtype)});
            },
            nb::arg("index"), nb::arg("base_addr"), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("block_stride"),
            nb::arg("layer_stride"), nb::arg("head_stride"), nb::arg("v_offset"), nb::arg("dtype") = 0)
        .def(
            "step",
            [](Executor& self, Header header) {
                nb::gil_scoped_release released;
                self.step(header.data(), static_cast<int64_t>(header.size()));
            },
            nb::arg("header").noconvert())
        .def(
            "run_calls",
            [](Executor& self, Header header, int64_t first_call, int64_t num_calls) {
                nb::gil_scoped_release released;
                self.run_calls(header.data(), static_cast<int64_t>(header.size()), first_call, num_calls);
            },
            nb::arg("header").noconvert(), nb::arg("first_call"), nb::arg("num_calls"))
        .def(
            "run_segment",
            [](Executor& self, Header header, int64_t segment) {
                nb::gil_scoped_release released;
                self.run_segment(header.data(), static_cast<int64_t>(header.size()), segment);
            },
            nb::arg("header").noconvert(), nb::arg("segment"))
        .def("outputs", &outputs)
        .def("row_tokens", &row_tokens, nb::arg("row"))
        .def("row_length", &row_length, nb::arg("row"))
        .def("row_table", &row_table, nb::arg("group"), nb::arg("row"))
        .def_prop_ro("token_rows",
                     [](const Executor& self) {
                         return step_view(self, &headrace::StepTokens::token_row, &headrace::StepTokens::num_tokens);
                     })
        .def_prop_ro("token_positions",
                     [](const Executor& self) {
                         return step_view(self, &headrace::StepTokens::token_position, &headrace::StepTokens::num_tokens);
                     })
        .def_prop_ro("logits_tokens",
                     [](const Executor& self) {
                         return step_view(self, &headrace::StepTokens::logits_token, &headrace::StepTokens::num_logits_rows);
                     })
        .def("progress", &Executor::progress)
        .def("raise_gate", &Executor::raise_gate, nb::arg("gate"), nb::arg("value"))
        .def("set_gate_timeout", &Executor::set_gate_timeout, nb::arg("seconds"))
        .def("memory_bytes", &Executor::memory_bytes)
        .def("profile", &Executor::set_profile, nb::arg("on"), nb::arg("trace") = false)
        .def("call_busy_ns", &Executor::call_busy_ns)
        .def("call_phases", &Executor::call_phases)
        .def("trace", &trace)
        .def("call_times_ns", &Executor::call_times_ns)
        .def("close", &Executor::close);

    bind_ops(m);
    bind_probes(m);
    bind_queue(m);
    bind_files(m);
}
