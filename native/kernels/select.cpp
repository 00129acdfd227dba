// Which ISA levels this CPU and its operating system run. __builtin_cpu_supports checks XGETBV too: a level whose registers
// the system does not save is not offered.
#include <cstring>
#include "kernels.h"

namespace headrace {
namespace {

struct Levels {
    const char* names[4] = {};
    const Kernels* tables[4] = {};
    int count = 0;

    void add(const Kernels& kernels) {
        names[count] = kernels.isa;
        tables[count++] = &kernels;
    }

    Levels() {
        __builtin_cpu_init();
        const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vnni");
        if (avx512) add(kernels_avx512_vnni());
        if (avx2) add(kernels_avx2());
        add(kernels_portable());
    }
};

const Levels& levels() {
    static const Levels found;
    return found;
}

}  // namespace

const char* const* available_isas() { return levels().names; }

const Kernels* select_kernels(const char* name) {
    const Levels& all = levels();
    if (name == nullptr || *name == '\0') return all.tables[0];
    for (int i = 0; i < all.count; ++i)
        if (std::strcmp(all.names[i], name) == 0) return all.tables[i];
    return nullptr;
}

}  // namespace headrace
