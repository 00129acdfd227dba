#include "vec/avx2.h"
#include "ops/table.h"

namespace headrace {

const Kernels& kernels_avx2() {
    static constexpr Kernels table = kernels_named("avx2");
    return table;
}

}  // namespace headrace
