// Two faults on purpose. `make asan` runs them first: sanitizers that miss these would miss the real ones too.
#include <climits>
#include <cstdlib>

extern "C" int planted_overflow(int size) {
    char* bytes = static_cast<char*>(std::malloc(static_cast<std::size_t>(size)));
    volatile char* seen = bytes;
    const int value = seen[size];  // one past the end
    std::free(bytes);
    return value;
}

extern "C" int planted_undefined(int increment) { return INT_MAX + increment; }
