// Which ISA levels this CPU and its operating system run. __builtin_cpu_supports checks XGETBV too: a level whose registers
// the system does not save is not offered. HEADRACE_HAVE_* say which levels this build has (CMakeLists.txt).
#include <cstring>
#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

struct Levels {
    const char* names[8] = {};
    const Kernels* tables[8] = {};
    int count = 0;

    void add(const Kernels& kernels) {
        names[count] = kernels.isa;
        tables[count++] = &kernels;
    }

    Levels() {
#if defined(__x86_64__)
        __builtin_cpu_init();
        const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#ifdef HEADRACE_HAVE_AVX512_VNNI
        if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
            add(kernels_avx512_vnni());
#endif
#ifdef HEADRACE_HAVE_AVX_VNNI
        if (avx2 && __builtin_cpu_supports("avxvnni")) add(kernels_avx_vnni());
#endif
#ifdef HEADRACE_HAVE_AVX2
        if (avx2) add(kernels_avx2());
#endif
#elif defined(__aarch64__)
#if defined(__linux__)
        // Bit numbers of the kernel's ABI; older headers lack the names.
        const bool dotprod = (getauxval(AT_HWCAP) >> 20 & 1) != 0, i8mm = (getauxval(AT_HWCAP2) >> 13 & 1) != 0;
#else
        const bool dotprod = false, i8mm = false;
#endif
#ifdef HEADRACE_HAVE_NEON_I8MM
        if (dotprod && i8mm) add(kernels_neon_i8mm());
#endif
#ifdef HEADRACE_HAVE_NEON_DOTPROD
        if (dotprod) add(kernels_neon_dotprod());
#endif
#ifdef HEADRACE_HAVE_NEON
        add(kernels_neon());  // every Armv8-A has Advanced SIMD
#endif
#endif
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
