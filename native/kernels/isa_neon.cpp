#include "vec/neon.h"
#include "ops/table.h"

namespace headrace {

const Kernels& kernels_neon() {
    static constexpr Kernels table = kernels_named("neon");
    return table;
}

}  // namespace headrace
