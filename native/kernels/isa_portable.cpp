#include "vec/portable.h"
#include "ops/table.h"

namespace headrace {

const Kernels& kernels_portable() {
    static constexpr Kernels table = kernels_named("portable");
    return table;
}

}  // namespace headrace
