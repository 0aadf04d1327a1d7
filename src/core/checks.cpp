// Are the numbers of a call sound? Checks of what a user passes, in one pass each.
#include <algorithm>
#include <cmath>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "steps.hpp"

namespace sharpwave {
namespace {

// NaN is not within.
template <class T>
[[gnu::always_inline]] inline bool within(std::span<const T> values, double limit) {
    int64_t sound = 1;  // as wide as a double: a vector of comparisons needs no narrowing
    for (T value : values) sound &= std::abs(static_cast<double>(value)) <= limit;
    return sound;
}

SHARPWAVE_WIDE bool floats_within(std::span<const float> values, double limit) { return within(values, limit); }

SHARPWAVE_WIDE bool doubles_within(std::span<const double> values, double limit) { return within(values, limit); }

int64_t join_flags(ConstBytes terminated, ConstBytes truncated, Bytes flags) {
    require(terminated.size() == flags.size() && truncated.size() == flags.size(), "each step has both flags");
    int64_t found = -1;
    for (std::size_t i = 0; i < flags.size(); ++i) {
        flags[i] = static_cast<uint8_t>((terminated[i] ? terminated_flag : 0) | (truncated[i] ? truncated_flag : 0));
        if (found < 0 && flags[i] == truncated_flag) found = static_cast<int64_t>(i);
    }
    return found;
}

SHARPWAVE_WIDE int64_t highest(ConstInts numbers) {
    int64_t found = -1;
    for (int64_t number : numbers) found = std::max(found, number);
    return found;
}

}  // namespace

void define_checks(nanobind::module_& module) {
    using namespace nanobind::literals;
    constexpr const char* doc = "Return whether all values are in [``-limit``, ``limit``]; NaN is not.";
    module.def("all_within", &floats_within, "values"_a, "limit"_a, doc);
    module.def("all_within", &doubles_within, "values"_a, "limit"_a, doc);
    module.def("join_flags", &join_flags, "terminated"_a, "truncated"_a, "flags"_a,
               "Write the bits of both flags; return the first step that is truncated and not terminated, or -1.");
    module.def("highest", &highest, "numbers"_a, "Return the highest of ``numbers``, none below 0; -1: there is none.");
}

}  // namespace sharpwave
