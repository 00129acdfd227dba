// Rotary tables in double arithmetic that uses +, -, * only: the same bits on every machine, whatever its libm.
// Range reduction with pi/2 in three 33-bit parts and the kernel polynomials are those of fdlibm (Sun Microsystems, 1993);
// exact enough for angles below 2^20 * pi/2.
#include "kernels.h"

namespace headrace {
namespace {

constexpr double ROUNDING_MAGIC = 6755399441055744.0;  // 1.5 * 2^52

double sin_kernel(double x) {  // |x| <= pi/4
    const double z = x * x;
    double r = 1.58969099521155010221e-10;
    r = -2.50507602534068634195e-08 + z * r;
    r = 2.75573137070700676789e-06 + z * r;
    r = -1.98412698298579493134e-04 + z * r;
    r = 8.33333333332248946124e-03 + z * r;
    return x + (z * x) * (-1.66666666666666324348e-01 + z * r);
}

double cos_kernel(double x) {
    const double z = x * x;
    double r = -1.13596475577881948265e-11;
    r = 2.08757232129817482790e-09 + z * r;
    r = -2.75573143513906633035e-07 + z * r;
    r = 2.48015872894767294178e-05 + z * r;
    r = -1.38888888888741095749e-03 + z * r;
    r = 4.16666666666666019037e-02 + z * r;
    return 1.0 - (0.5 * z - (z * z) * r);
}

void sin_cos(double angle, double& sine, double& cosine) {
    const double n = (angle * 6.36619772367581382433e-01 + ROUNDING_MAGIC) - ROUNDING_MAGIC;
    const double r = ((angle - n * 1.57079632673412561417e+00) - n * 6.07710050630396597660e-11) - n * 2.02226624879595063154e-21;
    const double s = sin_kernel(r), c = cos_kernel(r);
    switch (static_cast<int64_t>(n) & 3) {
        case 0: sine = s; cosine = c; break;
        case 1: sine = c; cosine = -s; break;
        case 2: sine = -s; cosine = -c; break;
        default: sine = -c; cosine = s; break;
    }
}

}  // namespace

void rope_table(const double* inv_freq, int64_t half, int64_t max_len, double attention_factor, float* out) {
    for (int64_t position = 0; position < max_len; ++position)
        for (int64_t i = 0; i < half; ++i) {
            double sine, cosine;
            sin_cos(double(position) * inv_freq[i], sine, cosine);
            *out++ = float(cosine * attention_factor);
            *out++ = float(sine * attention_factor);
        }
}

}  // namespace headrace
