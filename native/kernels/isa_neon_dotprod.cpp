#include "vec/neon.h"
#include "ops/table.h"

namespace headrace {

const Kernels& kernels_neon_dotprod() {
    static constexpr Kernels table = kernels_named("neon_dotprod");
    return table;
}

}  // namespace headrace
