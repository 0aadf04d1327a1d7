"""Addresses of shards, connections to them, and the handshake by which both ends show that they know a secret."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import ssl
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharpwave.serve import wire
from sharpwave.serve.wire import WireError

UNIX, TCP = "unix", "tcp"
CONNECT_S = 10.0
"""Time limit of connecting and of the handshake."""
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Two minutes after a peer's machine was lost, its connection ends, and frees the memory kept for it."""
NONCE_BYTES = 32
HELLO, PROOF, WELCOME = 1, 2, 3
"""Kinds of the handshake's frames."""


@dataclass(frozen=True)
class Address:
    """Address of a listener: ``unix:PATH`` or ``tcp://HOST:PORT``.

    Attributes:
        kind: ``UNIX`` or ``TCP``. ``path``: the socket's path. ``host``, ``port``: port 0 means any free port.
    """

    kind: str
    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> Address:
        """Return the address that ``text`` names; a path other than text is a unix socket's.

        Raises: ValueError, TypeError.
        """
        given = os.fspath(text) if isinstance(text, (str, os.PathLike)) else None
        wrong = f"address {text!r}, expected unix:PATH, tcp://HOST:PORT or HOST:PORT"
        if not isinstance(given, str):
            raise TypeError(wrong)
        if not isinstance(text, str) and not given.startswith("unix:"):
            given = f"unix:{given}"
        if given.startswith("unix:"):
            path = given.removeprefix("unix:")
            if not path:
                raise ValueError(wrong)
            return cls(UNIX, path=str(Path(path).absolute()))
        host, colon, port = given.removeprefix("tcp://").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or "/" in host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(wrong)
        return cls(TCP, host=host, port=int(port))

    def __str__(self) -> str:
        if self.kind == UNIX:
            return f"unix:{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def is_any(self) -> bool:
        """Whether it stands for every address of a machine."""
        return self.kind == TCP and self.host in ("0.0.0.0", "::")

    @property
    def from_elsewhere(self) -> Address:
        """As other machines may reach it: with this machine's name where it stands for every address."""
        return replace(self, host=socket.gethostname()) if self.is_any else self

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        if self.kind == UNIX or self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


HERE = Address(TCP, host="127.0.0.1")


@dataclass(frozen=True)
class Security:
    """Secret and certificates of a connection, of which both ends must have the same.

    Attributes:
        secret: shared secret; empty: none, which only addresses of this machine accept.
        certificate, key: PEM files of the server's certificate: connections are encrypted. ``authority``: PEM file by
            which a client checks it.
    """

    secret: bytes = b""
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None

    @classmethod
    def of(cls, secret: bytes | str | None, **files: str | None) -> Security:
        """Return it for a secret as users give it: text, bytes, or ``None`` for ``SHARPWAVE_SECRET``.

        Raises: ValueError: an ``authority`` that cannot be used.
        """
        if secret is None:
            secret = os.environ.get("SHARPWAVE_SECRET", "")
        found = {name: None if one is None else str(Path(one).absolute()) for name, one in files.items()}
        if (authority := found.get("authority")) is not None:
            try:
                ssl.create_default_context(cafile=authority)
            except OSError as error:
                raise ValueError(
                    f"tls_authority={authority}: {error.strerror or error}; expected a PEM file of certificates"
                ) from error
        return cls(secret.encode() if isinstance(secret, str) else bytes(secret), **found)

    def check(self, address: Address) -> None:
        """Refuse to listen where strangers could connect, or with a certificate that cannot be used.

        Raises: ValueError.
        """
        self.server_context()
        if not address.is_local and len(self.secret) < 16:
            raise ValueError(
                f"{address}: other machines can reach this address, so it needs a shared secret of at least 16 "
                "characters: set SHARPWAVE_SECRET on both ends (python -c 'import secrets; "
                "print(secrets.token_hex(32))' makes one), or listen on 127.0.0.1"
            )

    def server_context(self) -> ssl.SSLContext | None:
        """Return the context with which a server encrypts; ``None``: it does not.  Raises: ValueError: bad files."""
        given = {"tls_certificate": self.certificate, "tls_key": self.key}
        files = {name: path for name, path in given.items() if path is not None}
        if not files:
            return None
        for name, path in files.items():
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ValueError(f"{name}={path}: {error.strerror}; give a PEM file that can be read") from error
        if self.certificate is None:
            raise ValueError(
                f"tls_key={self.key}: without a certificate it encrypts nothing; give tls_certificate= too"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # nobody is there to be asked for one
        except (ssl.SSLError, ValueError) as error:
            named = ", ".join(f"{name}={path}" for name, path in files.items())
            raise ValueError(
                f"{named}: {error}; expected a certificate and, in the same file or as tls_key=, its key, without a "
                "password"
            ) from error
        return context


def reachable(said: Mapping[str, Any], directory: Address) -> dict[str, Any]:
    """Return a directory's reply, with its own host where shards listen at every address of their machine."""

    def named(text: str) -> str:
        one = Address.parse(text)
        return str(replace(one, host=directory.host)) if one.is_any and directory.kind == TCP else text

    return {**said, "shards": [[named(one) for one in addresses] for addresses in said["shards"]]}


def nearest(said: Mapping[str, Any], directory: Address) -> list[Address]:
    """Return each shard's address by which this process reaches it best: its unix socket on the same machine."""
    here, found = machine(), []
    said = reachable(said, directory)
    machines = said.get("machines") or [said["machine"]] * len(said["shards"])
    for addresses, where in zip(said["shards"], machines, strict=True):
        parsed = [Address.parse(one) for one in addresses]
        unix = [one for one in parsed if one.kind == UNIX and where == here and os.access(one.path, os.W_OK)]
        others = [one for one in parsed if one.kind == TCP]
        if not unix and not others:
            raise ConnectionError(f"{directory}: a shard listens at {addresses} only, which is on another machine")
        found.append((unix or others)[0])
    return found


def machine() -> str:
    """Return an identifier of this machine since it was started; a container counts as another machine."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return " ".join(parts)


def listen(address: Address, security: Security) -> tuple[socket.socket, Address]:
    """Listen at an address; return the socket, and the address with the port that it got.

    Raises:
        ValueError: it needs a secret.  OSError: it is in use, or not this machine's.
    """
    security.check(address)
    if address.kind == UNIX:
        return _listen_unix(address), address
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(1024)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"{address}: cannot listen there ({error.strerror or error})") from error
    return made, Address(TCP, host=address.host, port=made.getsockname()[1])


def check_free(address: Address, security: Security) -> None:
    """Refuse an address at which this process could not listen now.  Raises: as ``listen``."""
    made, here = listen(address, security)
    made.close()
    if here.path:
        os.unlink(here.path)


def _listen_unix(address: Address) -> socket.socket:
    """Bind a unix socket that only this user can connect to; one that nobody listens at any more is replaced."""
    if len(os.fsencode(address.path)) > 100:
        raise ValueError(f"{address}: a unix socket's path has at most 100 bytes; use a shorter one")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        try:
            made.bind(address.path)
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(os.lstat(address.path).st_mode):
                    raise FileExistsError(f"{address}: there is a file that is no socket; move it away") from error
                _check_abandoned(address)
                os.unlink(address.path)
            made.bind(address.path)
    except OSError as error:
        made.close()
        if error.filename is None and not isinstance(error, FileExistsError):
            raise OSError(error.errno, f"{address}: cannot listen there ({error.strerror or error})") from error
        raise
    finally:
        os.umask(before)
    made.listen(1024)
    return made


def _check_abandoned(address: Address) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            return
        except OSError:
            pass
    raise FileExistsError(
        f"{address}: another process listens there, or a server of this one; stop it, or use another path"
    )


def connect(
    address: Address, security: Security, timeout: float = CONNECT_S, started_by: str = "sharpwave serve"
) -> tuple[socket.socket, dict[str, Any]]:
    """Connect, and show and check the secret; return the socket and the description that the other end gives.

    Args:
        started_by: the command that listens there, for the error message.

    Raises:
        ConnectionError: nobody listens there, the secret is another, or the peer speaks another language.
        OSError: it cannot be reached.
    """
    made, remedy = _reached(address, timeout, started_by), ""
    try:
        made.settimeout(timeout)
        if address.kind == TCP:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Both ends may wait for the other's first word, and either gives up first: name the remedy in any case.
            if security.authority is not None:
                context = ssl.create_default_context(cafile=security.authority)
                remedy = "; where the server has no TLS certificate, connect without tls_authority="
                made = context.wrap_socket(made, server_hostname=address.host)
                remedy = ""
            else:
                remedy = "; where the server has a TLS certificate, pass tls_authority="
        hello = _received(made, HELLO)
        remedy = ""
        return made, _greet(made, security, hello)
    except BaseException as error:
        made.close()
        if isinstance(error, OSError) and not str(error).startswith(str(address)):
            certain = isinstance(error, ssl.SSLCertVerificationError)  # it has a certificate
            raise ConnectionError(f"{address}: {error}{'' if certain else remedy}") from error
        raise


def _reached(address: Address, timeout: float, started_by: str) -> socket.socket:
    try:
        if address.kind == TCP:
            return socket.create_connection((address.host, address.port), timeout)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(timeout)
            made.connect(address.path)
        except BaseException:
            made.close()
            raise
        return made
    except OSError as error:
        raise ConnectionError(
            f"{address}: nothing answers there ({error.strerror or error}); start `{started_by}`, or correct the "
            "address"
        ) from error


def _greet(made: socket.socket, security: Security, hello: wire.Frame) -> dict[str, Any]:
    """Answer a server's greeting; return its description."""
    theirs, ours = _nonce(hello), secrets.token_bytes(NONCE_BYTES)
    wire.send(made, PROOF, 0, {"nonce": ours.hex(), "proof": _proof(security.secret, b"client", theirs, ours)})
    welcome = _received(made, WELCOME)
    if welcome.head.get("refused"):
        raise ConnectionError(
            f"the secret is another than the server's ({'none' if not security.secret else 'one'} was given): set "
            "SHARPWAVE_SECRET to the same on both ends, or pass secret="
        )
    if not hmac.compare_digest(str(welcome.head.get("proof")), _proof(security.secret, b"server", theirs, ours)):
        raise ConnectionError("the server does not know the secret; it may not be the one that was meant")
    return welcome.head


def _received(made: socket.socket, kind: int) -> wire.Frame:
    frame = wire.receive(made, wire.MAX_STRANGER_BYTES, wire.MAX_STRANGER_BYTES)
    if frame is None:
        raise WireError("the other end closed the connection during the handshake")
    if frame.kind != kind:
        raise WireError(f"a frame of kind {frame.kind} during the handshake, expected {kind}")
    return frame


def accept(made: socket.socket, security: Security, about: dict[str, Any], local: bool) -> socket.socket:
    """Greet a client that has connected; return the socket to go on with.

    Args:
        about: description of this end. ``local``: a unix socket, whose peer must run as this user (or root).

    Raises:
        ConnectionError, OSError: the client is refused, or sent nothing in time.
    """
    made.settimeout(CONNECT_S)
    if local:
        _check_peer(made)
    else:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        try:
            context = security.server_context()
        except ValueError as error:  # the files were deleted or replaced
            raise ConnectionError(str(error)) from error
        if context is not None:
            made = context.wrap_socket(made, server_side=True)
    ours = secrets.token_bytes(NONCE_BYTES)
    wire.send(made, HELLO, 0, {"nonce": ours.hex(), "version": wire.VERSION})
    proof = _received(made, PROOF)
    theirs = _nonce(proof)
    if not hmac.compare_digest(str(proof.head.get("proof")), _proof(security.secret, b"client", ours, theirs)):
        wire.send(made, WELCOME, 0, {"refused": True})
        raise ConnectionError("a client did not know the secret")
    wire.send(made, WELCOME, 0, {**about, "proof": _proof(security.secret, b"server", ours, theirs)})
    made.settimeout(None)
    return made


def _check_peer(made: socket.socket) -> None:
    """Refuse another user's process.  Raises: ConnectionError."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        _, user, _ = struct.unpack("3i", made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if user not in (0, os.getuid()):
            raise ConnectionError(f"a process of user {user} connected, expected one of user {os.getuid()}")


def _nonce(frame: wire.Frame) -> bytes:
    try:
        nonce = bytes.fromhex(frame.head["nonce"])
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("a handshake without a nonce") from error
    if len(nonce) != NONCE_BYTES:
        raise WireError(f"a nonce of {len(nonce)} bytes, expected {NONCE_BYTES}")
    return nonce


def _proof(secret: bytes, role: bytes, server: bytes, client: bytes) -> str:
    return hmac.new(secret, b"sharpwave " + role + server + client, hashlib.sha256).hexdigest()
