#include "vec/neon.h"
#include "ops/table.h"

namespace headrace {

const Kernels& kernels_neon_i8mm() {
    static constexpr Kernels table = kernels_named("neon_i8mm");
    return table;
}

}  // namespace headrace
