// Which rooms has the core? Each defines its functions in Python's module.
#pragma once

#include <nanobind/nanobind.h>

namespace sharpwave {

void define_append(nanobind::module_& module);
void define_arena(nanobind::module_& module);
void define_boundaries(nanobind::module_& module);
void define_batches(nanobind::module_& module);
void define_checksum(nanobind::module_& module);
void define_codecs(nanobind::module_& module);
void define_column_choice(nanobind::module_& module);
void define_known_steps(nanobind::module_& module);
void define_transitions(nanobind::module_& module);
void define_hindsight(nanobind::module_& module);
void define_gather(nanobind::module_& module);
void define_helpers(nanobind::module_& module);
void define_sequences(nanobind::module_& module);
void define_cache(nanobind::module_& module);
void define_file_ranges(nanobind::module_& module);
void define_reads(nanobind::module_& module);
void define_sum_tree(nanobind::module_& module);
void define_draws(nanobind::module_& module);
void define_orders(nanobind::module_& module);
void define_index(nanobind::module_& module);
void define_checks(nanobind::module_& module);
void define_items(nanobind::module_& module);
void define_leaves(nanobind::module_& module);
void define_learning(nanobind::module_& module);
void define_ragged(nanobind::module_& module);
void define_rows(nanobind::module_& module);
void define_sampling(nanobind::module_& module);
void define_shared_index(nanobind::module_& module);
void define_slots(nanobind::module_& module);
void define_turnover(nanobind::module_& module);
void define_cut(nanobind::module_& module);
void define_packing(nanobind::module_& module);
void define_pages(nanobind::module_& module);
void define_patch_encoding(nanobind::module_& module);
void define_predict(nanobind::module_& module);
void define_value_records(nanobind::module_& module);
void define_window_filler(nanobind::module_& module);

}  // namespace sharpwave
