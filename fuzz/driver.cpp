// How is a fuzz target run without libFuzzer? By inputs that change those before which reached new code.
//
//     TARGET INPUTS SEED [FOLDER]   runs so many inputs, which change the files of a folder; a seed gives the same ones
//     TARGET FILE                   runs one
//
// `make fuzz-core` builds the targets. With clang, -fsanitize=fuzzer replaces this file. An input that ends the process
// is written to finding-TARGET in the working directory.
#include <sanitizer/common_interface_defs.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "bytes.hpp"

#define UNWATCHED __attribute__((no_sanitize_coverage))

namespace {

using Content = std::vector<std::uint8_t>;

constexpr std::size_t places = 1 << 14, max_bytes = 2048;
std::uint8_t reached[places];  // by this input
std::string target;
const Content* running = nullptr;

// Numbers of a seed (SplitMix64).
class Numbers {
  public:
    explicit Numbers(std::uint64_t seed) : state_(seed) {}
    std::size_t below(std::size_t count) {
        std::uint64_t value = state_ += 0x9E3779B97F4A7C15u;
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
        value = (value ^ value >> 27) * 0x94D049BB133111EBu;
        return static_cast<std::size_t>((value ^ value >> 31) % count);
    }

  private:
    std::uint64_t state_;
};

void write_finding() {
    if (!running) return;
    const std::string name = "finding-" + target;
    std::ofstream(name, std::ios::binary)
        .write(reinterpret_cast<const char*>(running->data()), static_cast<std::streamsize>(running->size()));
    std::fprintf(stderr, "sharpwave fuzz: the input is in %s\n", name.c_str());
    running = nullptr;
}

void run(const Content& input) {
    const Content held(input);  // of no more than its bytes
    running = &held;
    LLVMFuzzerTestOneInput(held.data(), held.size());
    running = nullptr;
}

// Changes an input in one to four places, or joins it with another.
Content changed(Content input, const std::vector<Content>& inputs, Numbers& numbers) {
    static constexpr std::uint8_t telling[] = {0, 1, 2, 3, 4, 15, 16, 31, 63, 64, 127, 128, 239, 240, 254, 255};
    for (std::size_t left = 1 + numbers.below(4); left > 0; --left) {
        const std::size_t at = numbers.below(input.size() + 1);
        const auto here = input.begin() + static_cast<std::ptrdiff_t>(at);
        const Content& other = inputs[numbers.below(inputs.size())];
        const std::size_t begin = numbers.below(other.size() + 1);
        const std::size_t count = std::min(other.size() - begin, 1 + numbers.below(24));
        const auto from = other.begin() + static_cast<std::ptrdiff_t>(begin);
        switch (numbers.below(8)) {
            case 0:
                if (here != input.end()) *here ^= static_cast<std::uint8_t>(1 << numbers.below(8));
                break;
            case 1:
                if (here != input.end()) *here = static_cast<std::uint8_t>(numbers.below(256));
                break;
            case 2:
                if (here != input.end()) *here = telling[numbers.below(std::size(telling))];
                break;
            case 3:
                if (here != input.end()) *here = static_cast<std::uint8_t>(*here + numbers.below(9) - 4);
                break;
            case 4:
                input.insert(here, 1 + numbers.below(6), static_cast<std::uint8_t>(numbers.below(256)));
                break;
            case 5:
                input.erase(here,
                            here + static_cast<std::ptrdiff_t>(std::min(input.size() - at, 1 + numbers.below(6))));
                break;
            case 6:
                input.insert(here, from, from + static_cast<std::ptrdiff_t>(count));
                break;
            default:
                std::copy_n(from, std::min(count, input.size() - at), here);
        }
    }
    input.resize(std::min(input.size(), max_bytes));
    return input;
}

Content read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Returns whether an input reached a place that none before it did, or more or less often; forgets what it reached.
bool new_places(std::vector<std::uint8_t>& known) {
    bool found = false;
    for (std::size_t begin = 0; begin < places; begin += 8) {
        std::uint64_t eight = 0;
        std::memcpy(&eight, reached + begin, 8);
        if (!eight) continue;
        for (std::size_t k = begin; k < begin + 8; ++k) {
            const int times = reached[k];
            const auto often = static_cast<std::uint8_t>(times < 4 ? times : times < 32 ? 4 : 8);
            found |= (known[k] & often) != often;
            known[k] |= often;
        }
        std::memset(reached + begin, 0, 8);
    }
    return found;
}

}  // namespace

extern "C" UNWATCHED void __sanitizer_cov_trace_pc() {
    const auto at = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) -
                    reinterpret_cast<std::uintptr_t>(&LLVMFuzzerTestOneInput);
    std::uint8_t& times = reached[at % places];
    if (times < 255) ++times;
}

extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

int main(int count, char** words) {
    target = std::filesystem::path(words[0]).filename().string();
    __sanitizer_set_death_callback(write_finding);
    std::signal(SIGABRT, [](int) { write_finding(); });
    if (count == 2) {
        run(read_file(words[1]));
        return 0;
    }
    const auto executions = std::strtoull(words[1], nullptr, 10);
    Numbers numbers(std::strtoull(words[2], nullptr, 10));
    std::vector<Content> inputs;
    if (count > 3) {
        std::vector<std::filesystem::path> files;
        for (const auto& entry : std::filesystem::directory_iterator(words[3])) files.push_back(entry.path());
        std::sort(files.begin(), files.end());
        for (const auto& file : files) inputs.push_back(read_file(file));
    }
    if (inputs.empty()) inputs.emplace_back();
    std::vector<std::uint8_t> known(places);
    const std::size_t given = inputs.size();
    for (const Content& input : inputs) run(input);
    new_places(known);
    for (std::uint64_t k = 0; k < executions; ++k) {
        Content input = changed(inputs[numbers.below(inputs.size())], inputs, numbers);
        run(input);
        if (new_places(known)) inputs.push_back(std::move(input));
    }
    const auto seen = std::count_if(known.begin(), known.end(), [](std::uint8_t times) { return times; });
    std::printf("%s: %llu inputs, no finding; %zu given, %zu kept that reached new code, %td places\n", target.c_str(),
                executions, given, inputs.size() - given, seen);
    return 0;
}
