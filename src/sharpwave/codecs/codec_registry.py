"""Registry of codecs, by name and by number, and of the codecs that ``codec="auto"`` chooses from.

======= ====== ================================ ===========================================================
codec   number dictionary                       payload
======= ====== ================================ ===========================================================
raw     0      none                             the rows
zstd    1      up to 16 KiB of common strings   uint32 offsets [n + 1], then one zstd frame a row
delta   2      one reference row                uint32 offsets [n + 2], then patches: the column's
                                                background against the reference, each row against the
                                                background
predict 3      one reference row                uint32 offsets [n + 1], then one zstd frame of a filtered
                                                row each
patches 4      one reference row                uint32 offsets [n + 3], then a table of patches that
                                                return, then patches as delta's
packed  5      none                             each number of a row in as few bits as its column needs
ragged  6      none                             rows of any length (``codecs.ragged_rows``): of ragged fields only
======= ====== ================================ ===========================================================

Offsets are little-endian and count from the end of the offset table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharpwave.codecs.codec_protocol import Codec
from sharpwave.codecs.delta import Delta, Patches
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.codecs.predict import Predict
from sharpwave.codecs.raw import Raw
from sharpwave.codecs.zstd import Zstd
from sharpwave.errors import UnknownCodecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NUMBERS = 256
"""Codec numbers that a store can tell apart."""
RAGGED = 6
"""Number of the codec of ragged fields, which packs no rows of one length: it has no ``Codec`` here."""
MIN_AUTO_BYTES = 32
"""Rows smaller than this are ``packed`` or stay raw under ``codec="auto"``: an offset and a frame header for each would
cost more than is saved."""

GROUP = "sharpwave.codecs"
"""Entry points of other packages that are codecs, classes or instances: ``mine = "my_package.codecs:Mine"``. They are
imported when an unknown codec is requested, and never because of a store's files."""

_by_name: dict[str, Codec] = {}
_by_number: dict[int, Codec] = {}
_looked_at: set[EntryPoint] = set()
_broken: dict[str, str] = {}  # entry points that could not be loaded, and why


def register(codec: Codec) -> None:
    """Make a codec known to stores of this process. Readers of their data must register it, too.

    Raises:
        ValueError: its name or number is taken or invalid.
    """
    name, number = codec.name, codec.number
    if not name.isidentifier() or name == "auto" or not 0 <= number < NUMBERS:
        raise ValueError(
            f"codec {name!r}, number {number}: expected an identifier other than 'auto', and a number "
            f"from 0 to {NUMBERS - 1}"
        )
    if name == "ragged" or number == RAGGED:
        raise ValueError(f"codec {name!r}, number {number}: taken by 'ragged', number {RAGGED}; use others")
    if name in _by_name or number in _by_number:
        other = _by_name.get(name) or _by_number[number]
        raise ValueError(f"codec {name!r}, number {number}: taken by {other.name!r}, number {other.number}; use others")
    _by_name[name] = _by_number[number] = codec


def unregister(name: str) -> None:
    """Remove a codec. Stores with columns of it must have been closed.  Raises: ValueError: unknown."""
    codec = by_name(name)
    del _by_name[codec.name], _by_number[codec.number]


def load_installed() -> None:
    """Register the codecs of installed packages, if that was not done yet; broken ones are left out."""
    from importlib.metadata import entry_points  # 17 ms, and unknown codecs are rare

    for point in set(entry_points(group=GROUP)) - _looked_at:
        _looked_at.add(point)
        try:
            loaded = point.load()
            codec = loaded() if isinstance(loaded, type) else loaded
            if type(_by_name.get(codec.name)) is not type(codec):  # its module may have registered it
                register(codec)
        except Exception as error:
            _broken[point.name] = f"{type(error).__name__}: {error}"


def not_loaded() -> str:
    """Name the codecs of installed packages that could not be loaded, for the end of an error message."""
    return "".join(f"; entry point {name!r} of {GROUP} could not be loaded ({why})" for name, why in _broken.items())


def is_known(name: str) -> bool:
    """Return whether ``name`` is a codec's or "auto"."""
    if name != "auto" and name not in _by_name:
        load_installed()
    return name == "auto" or name in _by_name


def codec_choice(name: Any, where: str) -> str:
    """Return ``name`` if it is a codec's or "auto".  Raises: ValueError: beginning with ``where``."""
    if not isinstance(name, str) or not is_known(name):
        known = ", ".join(repr(one) for one in ("auto", *reversed(_by_name)))
        raise ValueError(
            f"{where}: codec {name!r}, expected one of {known}; register a codec of your own first "
            f"(sharpwave.codecs.codec_registry.register){not_loaded()}"
        )
    return name


def by_name(name: str) -> Codec:
    """Return the codec of that name.  Raises: ValueError: unknown."""
    if not is_known(name) or name == "auto":
        raise ValueError(f"codec {name!r}, expected one of {', '.join(map(repr, _by_name))}{not_loaded()}")
    return _by_name[name]


def by_number(number: int) -> Codec:
    """Return the codec of that number.  Raises: UnknownCodecError: unknown."""
    if number not in _by_number:
        load_installed()
    if number not in _by_number:
        known = ", ".join(f"{one.number} ({one.name})" for one in _by_number.values())
        raise UnknownCodecError(f"codec number {number}, expected one of {known}{not_loaded()}")
    return _by_number[number]


def name_of(number: int) -> str:
    """Return the name of the codec of that number, or the number if unknown."""
    if number == RAGGED:
        return "ragged"
    if number not in _by_number:
        load_installed()
    return _by_number[number].name if number in _by_number else str(number)


def candidates(row_bytes: int, line_bytes: int = 0) -> tuple[Codec, ...]:
    """Return the codecs that ``codec="auto"`` chooses from for such rows, besides raw, which remains if none qualifies.

    Args:
        line_bytes: as in ``Packed``.
    """
    if row_bytes < MIN_AUTO_BYTES:
        return (_by_number[PackedNumbers.number],)
    competing = [(codec, codec.competition) for codec in _by_number.values()]
    return tuple(
        codec
        for codec, rules in competing
        if rules is not None and row_bytes > rules.min_saved_bytes and (line_bytes or not rules.images)
    )


def max_dictionary_bytes(row_bytes: int) -> int:
    """Return the size of the largest dictionary that any codec takes for such rows."""
    return max(codec.max_dictionary_bytes(row_bytes) for codec in _by_number.values())


register(Raw())
register(Zstd())
register(Delta())
register(Predict())
register(Patches())
register(PackedNumbers())
