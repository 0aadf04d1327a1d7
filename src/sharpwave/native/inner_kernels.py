"""Compilation of kernels that only other kernels call: lowered, but optimised and translated within their callers.

Numba makes machine code of every function that it compiles, and again of the copy in each caller, which is the one that
runs. For kernels that Python never calls, the first is work for nothing.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import NativeLowering


class _Linked(JITCodeLibrary):
    """Code of one kernel and what it calls, to be linked into its callers'."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(LoweringPass):
    """Lower a kernel without making machine code of it, and let kernels call it."""

    _name = "inner_lowering"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._native = NativeLowering()

    def run_pass(self, state: Any) -> bool:
        """Run numba's pass on a library of this module's kind."""
        library: Any = _Linked
        state.library = library(state.targetctx.codegen(), state.func_id.func_qualname)
        flags = state.flags
        state.flags = flags.copy()
        state.flags.no_compile = True
        try:
            self._native.run_pass(state)
        finally:
            state.flags = flags

        # What Python would call, of a type that numba takes; it finds callees by it, so each kernel has its own.
        entry = [state.library].index
        state.cr = state.cr._replace(cfunc=entry)
        state.targetctx.insert_user_function(entry, state.cr.fndesc, [state.library])
        return True


class InnerCompiler(CompilerBase):
    """Numba's compiler with ``InnerLowering`` instead of its own last step."""

    def define_pipelines(self) -> list[Any]:
        """Return the only pipeline."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline._finalized = False
        pipeline.passes = [
            (InnerLowering, described) if one is NativeLowering else (one, described)
            for one, described in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]
