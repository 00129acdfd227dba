#include "vec/avx_vnni.h"
#include "ops/table.h"

namespace headrace {

const Kernels& kernels_avx_vnni() {
    static constexpr Kernels table = kernels_named("avx_vnni");
    return table;
}

}  // namespace headrace
