// What do agents compute outside torch? Errors of n-step returns, standardized frames and shifted images.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

using Floats = std::span<double>;
using ConstFloats = std::span<const double>;

std::size_t at(int64_t number) { return static_cast<std::size_t>(number); }

// Rescales a value (Pohlen et al. 2018): sign(x) (sqrt(|x| + 1) - 1) + eps x; eps 0: as it is.
double rescaled(double x, double eps) {
    if (eps == 0.0) return x;
    const double sign = x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x;  // x: 0 or NaN
    return sign * (std::sqrt(std::abs(x) + 1.0) - 1.0) + eps * x;
}

// Returns of the last n steps of each lane, not all of them over. Step t is row t % n.
struct OpenReturns {
    Grid<double> value, total, factor;
    Grid<uint8_t> open;
    double gamma, rescale;
    // The errors of step t are row t % rows.
    Grid<float> errors;

    // Adds step ``t`` of every lane, and writes the errors of steps whose returns are over with it.
    void add(int64_t t, ConstFloats best, ConstFloats taken, ConstFloats reward, ConstBytes terminated,
             ConstBytes truncated, ConstFloats final_best) const {
        const int64_t n_step = value.rows;
        for (std::size_t lane = 0; lane < at(value.columns); ++lane) {
            const int64_t now = t % n_step;  // where step t - n_step was
            if (open[now][lane]) {
                const double target = total[now][lane] + factor[now][lane] * best[lane];
                write_error(t - n_step, now, lane, target);
            }
            value[now][lane] = taken[lane];
            total[now][lane] = 0.0;
            factor[now][lane] = 1.0;
            open[now][lane] = true;
            for (int64_t k = 0; k < n_step; ++k) {
                if (!open[k][lane]) continue;
                total[k][lane] += factor[k][lane] * reward[lane];
                factor[k][lane] *= gamma;
                if (!terminated[lane] && !truncated[lane]) continue;
                const double after = terminated[lane] ? 0.0 : factor[k][lane] * final_best[lane];
                write_error(t - (now - k + n_step) % n_step, k, lane, total[k][lane] + after);
                open[k][lane] = false;
            }
        }
    }

    void write_error(int64_t step, int64_t row, std::size_t lane, double target) const {
        require(step >= 0, "a step whose return is open was made");
        errors[step % errors.rows][lane] = static_cast<float>(rescaled(target, rescale) - value[row][lane]);
    }
};

// Fills ``out`` [B, H * W] with (obs - mean) * factor in bfloat16, from obs [B, 4, H * W]: four a word, the first
// lowest.
SHARPWAVE_WIDE void standardize(Cube<const uint8_t> obs, std::span<const float> mean, float factor,
                                Grid<uint64_t> out) {
    constexpr std::size_t chunk = 256;  // pixels that stay in the first cache
    std::array<std::array<uint32_t, chunk>, 4> halves;
    const std::size_t pixels = mean.size();
    for (int64_t i = 0; i < obs.blocks; ++i) {
        const Grid<const uint8_t> frames = obs[i];
        uint64_t* words = out[i].data();
        for (std::size_t begin = 0; begin < pixels; begin += chunk) {
            const std::size_t count = std::min(chunk, pixels - begin);
            for (std::size_t k = 0; k < halves.size(); ++k) {
                const uint8_t* frame = frames[static_cast<int64_t>(k)].data() + begin;
                const float* means = mean.data() + begin;
                uint32_t* half = halves[k].data();
                for (std::size_t j = 0; j < count; ++j) {
                    const float value = (static_cast<float>(frame[j]) - means[j]) * factor;
                    uint32_t bits;
                    std::memcpy(&bits, &value, sizeof bits);
                    half[j] = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;  // to nearest, ties to even
                }
            }
            for (std::size_t j = 0; j < count; ++j) {
                const uint32_t low = halves[0][j] | halves[1][j] << 16, high = halves[2][j] | halves[3][j] << 16;
                words[begin + j] = low | static_cast<uint64_t>(high) << 32;
            }
        }
    }
}

// Shifts images [B, H, W * pixel bytes] down and right by whole pixels; their borders fill what becomes free.
void shift_images(Cube<const uint8_t> images, ConstInts down, ConstInts right, int64_t pixel_bytes, Cube<uint8_t> out) {
    const int64_t height = images.rows, size = images.columns;
    for (int64_t i = 0; i < images.blocks; ++i) {
        const int64_t step = std::clamp(right[at(i)] * pixel_bytes, -size, size);
        for (int64_t j = 0; j < height; ++j) {
            const uint8_t* source = images[i][std::clamp<int64_t>(j - down[at(i)], 0, height - 1)].data();
            uint8_t* row = out[i][j].data();
            if (step >= 0) {
                std::memcpy(row + step, source, at(size - step));
                for (int64_t k = 0; k < step; k += pixel_bytes) std::memcpy(row + k, source, at(pixel_bytes));
            } else {
                std::memcpy(row, source - step, at(size + step));
                const uint8_t* border = source + size - pixel_bytes;
                for (int64_t k = size + step; k < size; k += pixel_bytes) {
                    std::memcpy(row + k, border, at(pixel_bytes));
                }
            }
        }
    }
}

}  // namespace

void define_learning(nanobind::module_& module) {
    using namespace nanobind::literals;
    nanobind::class_<OpenReturns>(module, "OpenReturns", "Returns of each lane's last steps, in arrays that it keeps.")
        .def(
            "__init__",
            [](OpenReturns* returns, Grid<double> value, Grid<double> total, Grid<double> factor, Grid<uint8_t> open,
               Grid<float> errors, double gamma,
               double rescale) { new (returns) OpenReturns{value, total, factor, open, gamma, rescale, errors}; },
            "value"_a, "total"_a, "factor"_a, "open"_a, "errors"_a, "gamma"_a, "rescale"_a,
            nanobind::keep_alive<1, 2>(), nanobind::keep_alive<1, 3>(), nanobind::keep_alive<1, 4>(),
            nanobind::keep_alive<1, 5>(), nanobind::keep_alive<1, 6>())
        .def("add", &OpenReturns::add, "t"_a, "best"_a, "taken"_a, "reward"_a, "terminated"_a, "truncated"_a,
             "final_best"_a, "Add step ``t`` of every lane, and write the errors of steps whose returns are over.");
    module.def("standardize", &standardize, "obs"_a, "mean"_a, "factor"_a, "out"_a, nanobind::call_guard<Released>(),
               "Write ``(obs - mean) * factor`` of four frames in bfloat16, four of a pixel a word.");
    module.def("shift_images", &shift_images, "images"_a, "down"_a, "right"_a, "pixel_bytes"_a, "out"_a,
               nanobind::call_guard<Released>(),
               "Shift images [B, H, W * pixel bytes] by whole pixels; borders fill what becomes free.");
}

}  // namespace sharpwave
