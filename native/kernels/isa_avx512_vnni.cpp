#include "vec/avx512.h"
#include "ops/table.h"

namespace headrace {

const Kernels& kernels_avx512_vnni() {
    static constexpr Kernels table = kernels_named("avx512_vnni");
    return table;
}

}  // namespace headrace
