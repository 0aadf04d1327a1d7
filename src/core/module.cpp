// What does Python see of the core? What each room defines.
#define SHARPWAVE_MODULE
#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

NB_MODULE(_core, module) {
    if (_import_array() < 0) throw nanobind::python_error();
    nanobind::set_leak_warnings(false);  // a store that lives until the process ends is no leak
    nanobind::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        if (!thrown) sharpwave::stop_thread();  // its stack is unwound, and nothing was thrown
        std::rethrow_exception(thrown);
    });
    module.doc() =
        "Native core: what runs per step, per item and per byte. Internal: its functions trust their callers.";
    sharpwave::define_boundaries(module);
    sharpwave::define_append(module);
    sharpwave::define_arena(module);
    sharpwave::define_batches(module);
    sharpwave::define_checksum(module);
    sharpwave::define_codecs(module);
    sharpwave::define_known_steps(module);
    sharpwave::define_leaves(module);
    sharpwave::define_items(module);
    sharpwave::define_sampling(module);
    sharpwave::define_transitions(module);
    sharpwave::define_hindsight(module);
    sharpwave::define_gather(module);
    sharpwave::define_helpers(module);
    sharpwave::define_sequences(module);
    sharpwave::define_window_filler(module);
    sharpwave::define_cache(module);
    sharpwave::define_file_ranges(module);
    sharpwave::define_reads(module);
    sharpwave::define_sum_tree(module);
    sharpwave::define_draws(module);
    sharpwave::define_orders(module);
    sharpwave::define_index(module);
    sharpwave::define_checks(module);
    sharpwave::define_learning(module);
    sharpwave::define_ragged(module);
    sharpwave::define_rows(module);
    sharpwave::define_shared_index(module);
    sharpwave::define_slots(module);
    sharpwave::define_value_records(module);
    sharpwave::define_turnover(module);
    sharpwave::define_cut(module);
    sharpwave::define_pages(module);
    sharpwave::define_packing(module);
    sharpwave::define_patch_encoding(module);
    sharpwave::define_predict(module);
    sharpwave::define_column_choice(module);
}
