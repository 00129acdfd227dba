// Reading the string arrays of a GGUF file: a vocabulary is a hundred thousand length-prefixed strings that can only be
// found one after the other. Both functions trust no length; what is wrong with a file is for the caller to say.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>

namespace nb = nanobind;

void bind_files(nb::module_&);

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr uint64_t LENGTH_BYTES = 8;

// The string at `position`: its length, with `position` moved to its first byte; false when it passes the end.
bool take_length(const Bytes& data, uint64_t& position, uint64_t& length) {
    const uint64_t size = data.size();
    if (position > size || size - position < LENGTH_BYTES) return false;
    std::memcpy(&length, data.data() + position, LENGTH_BYTES);  // little-endian, as the file
    position += LENGTH_BYTES;
    return length <= size - position;
}

// Where the array of `count` strings that begins at `position` ends; -1 when it passes the end of `data`.
int64_t skip_strings(const Bytes& data, uint64_t position, uint64_t count) {
    uint64_t length = 0;
    for (uint64_t i = 0; i < count; ++i) {
        if (!take_length(data, position, length)) return -1;
        position += length;
    }
    return static_cast<int64_t>(position);
}

// The strings as a list of str. Raises ValueError past the end of `data`, UnicodeDecodeError for what is no UTF-8.
nb::list read_strings(const Bytes& data, uint64_t position, uint64_t count) {
    nb::list strings;
    uint64_t length = 0;
    for (uint64_t i = 0; i < count; ++i) {
        if (!take_length(data, position, length)) throw nb::value_error("the strings pass the end of the data");
        PyObject* text = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data.data()) + position, static_cast<Py_ssize_t>(length), nullptr);
        if (text == nullptr) throw nb::python_error();
        strings.append(nb::steal(text));
        position += length;
    }
    return strings;
}

}  // namespace

void bind_files(nb::module_& m) {
    m.def("skip_strings", &skip_strings, nb::arg("data"), nb::arg("position"), nb::arg("count"));
    m.def("read_strings", &read_strings, nb::arg("data"), nb::arg("position"), nb::arg("count"));
}
