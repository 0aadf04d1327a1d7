// What is an n-step transition made of?
#pragma once

#include "filling.hpp"
#include "known_steps.hpp"

namespace sharpwave {

// Arrays of a batch [B] that are made of flags and rewards.
struct Numbers {
    std::span<float> reward, discount;
    Bytes terminated, truncated;
    Ints n, lane, step;
};

// Rows of ``located``.
enum Located : uint8_t {
    slot_at,
    row_at,
    frame_at,
    first_at,
    next_slot_at,
    next_frame_at,
    next_first_at,
    located_rows
};

// Computes the returns of ``steps``, and where their frames are; unless a view has ``stacks``, the frames below which
// those are padded may be any before.
void locate_transitions(const Log& log, ConstInts steps, int64_t n_step, double gamma, bool stacks, const Numbers& out,
                        Grid<int64_t> located);

// Rows that a window of a batch ends with: the steps' own, the frames of their stacks, or the frames after the last.
enum Ending : uint8_t { of_steps, of_frames, of_frames_after };

// Windows of rows: each one's segment, and the rows with which it ends and its episode begins.
struct Ends {
    ConstInts slot, newest, first;
};

Ends ends_of(Ending ending, Grid<const int64_t> located);

struct TransitionSettings {
    int64_t n_step;
    double gamma;
    bool stacks;
    Threads threads;
};

// Fills batches of transitions: ``Numbers`` in order, then a window for each of ``columns``, which end as ``endings``.
class TransitionFiller : public Filler {
  public:
    TransitionFiller(const Log& log, const nanobind::typed<nanobind::sequence, nanobind::object>& columns,
                     ConstBytes endings, StepFinder& finder, Grid<int32_t> spans, Grid<int64_t> runs,
                     const TransitionSettings& settings);

    int64_t find() override;
    int64_t fill(const Filling& filling, const Residents& residents) override;

  protected:
    static constexpr std::size_t windows_at = own_at + 7;

    const Log& log_;
    std::vector<nanobind::object> held_;
    std::vector<const Column*> columns_;
    ConstBytes endings_;
    StepFinder& finder_;
    TransitionSettings settings_;
};

}  // namespace sharpwave
