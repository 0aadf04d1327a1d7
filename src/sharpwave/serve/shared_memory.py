"""Memory that a client shares with the shards of its machine: batches are decoded into it, and nothing is copied."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import weakref

from sharpwave.serve.members import Members

_NUMBERS = itertools.count(1)
MAP_FIXED = 0x10


class SharedBlock(mmap.mmap):
    """Memory without a name, of which a file descriptor can be passed on. It can neither shrink nor grow.

    Attributes:
        number: of this block, never used again. ``fd``: its descriptor, closed with it.
        awaited: whether shards may be writing to it.
    """

    number: int
    fd: int
    awaited: bool

    def keep_apart(self) -> None:
        """Separate later writes of this process and of its forks: pages are copied on write.

        Shards must not write to it any more.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        _mmap(address, len(self), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_FIXED, self.fd, 0)


class SharedBlocks:
    """Maker of shared memory for a pool of batches.

    Args:
        members: of the cluster: its shards must forget freed blocks.
    """

    def __init__(self, members: Members) -> None:
        self._members = weakref.ref(members)  # which blocks must not keep alive
        self._made: weakref.WeakValueDictionary[int, SharedBlock] = weakref.WeakValueDictionary()  # by number

    def make(self, nbytes: int) -> SharedBlock:
        """Return new memory of ``nbytes`` zeros.  Raises: MemoryError."""
        import fcntl

        try:
            fd = os.memfd_create("sharpwave", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(fd, nbytes)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                block = SharedBlock(fd, nbytes)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise MemoryError(f"sample: the system has no {nbytes:,} bytes of shared memory ({error})") from error
        block.number, block.fd, block.awaited = next(_NUMBERS), fd, True
        weakref.finalize(block, _freed, fd, block.number, self._members)
        self._made[block.number] = block
        return block

    def keep_apart(self) -> None:
        """Before a fork, hide each process's writes to the batches held now from the other.

        Their memory must never be lent again.
        """
        for ref in self._made.valuerefs():  # a list at once: other threads make blocks
            block = ref()
            if block is not None and not block.awaited:
                block.keep_apart()
                self._made.pop(block.number, None)


def _freed(fd: int, number: int, members: weakref.ref[Members]) -> None:
    """Note that a block was freed, in any thread at any moment: no lock is taken."""
    os.close(fd)
    client = members()
    for link in [] if client is None else list(client.links):
        if number in link.shared:
            link.shared.discard(number)
            link.forgotten.append(number)


def _mmap(address: int, nbytes: int, protection: int, flags: int, fd: int, offset: int) -> None:
    """Map memory at an address.  Raises: OSError."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    if call(address, nbytes, protection, flags, fd, offset) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
