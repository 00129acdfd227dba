// The Python face of StepQueue.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "step_queue.h"

namespace nb = nanobind;

namespace {

using headrace::Executor;
using headrace::StepOutcome;
using headrace::StepQueue;
using Header = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object owned(const std::shared_ptr<StepOutcome>& outcome, std::vector<T>& data, std::initializer_list<size_t> shape) {
    nb::capsule owner(new std::shared_ptr<StepOutcome>(outcome),
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<StepOutcome>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data.data(), shape.size(), shape.begin(), owner));
}

nb::dict collect(StepQueue& queue) {
    std::shared_ptr<StepOutcome> outcome;
    {
        nb::gil_scoped_release released;
        outcome = queue.collect();
    }
    if (outcome->error) std::rethrow_exception(outcome->error);
    const auto rows = static_cast<size_t>(outcome->num_rows), top = static_cast<size_t>(outcome->max_top);
    nb::dict arrays;
    arrays["token_ids"] = owned(outcome, outcome->token_ids, {rows});
    arrays["logprobs"] = owned(outcome, outcome->logprobs, {rows});
    arrays["ranks"] = owned(outcome, outcome->ranks, {rows});
    arrays["top_ids"] = owned(outcome, outcome->top_ids, {rows, top});
    arrays["top_logprobs"] = owned(outcome, outcome->top_logprobs, {rows, top});
    return arrays;
}

}  // namespace

void bind_queue(nb::module_& m) {
    nb::class_<StepQueue>(m, "StepQueue")
        .def(nb::init<Executor&>(), nb::arg("executor"), nb::keep_alive<1, 2>())
        .def_prop_ro("num_pending", &StepQueue::num_pending)
        .def(
            "submit",
            [](StepQueue& self, Header header) { self.submit(header.data(), static_cast<int64_t>(header.size())); },
            nb::arg("header").noconvert())
        .def("collect", &collect)
        .def("close", [](StepQueue& self) {
            nb::gil_scoped_release released;
            self.close();
        });
}
