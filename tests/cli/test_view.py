"""``sharpwave view``: what it serves, refuses and prints."""

import http.client
import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

from sharpwave.cli import main
from tests.cli.conftest import ENVIRONMENT
from tests.cli.stores import make_store


def view(*arguments):
    """Start ``sharpwave view``."""
    command = [sys.executable, "-m", "sharpwave.cli", "view", *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def test_it_serves_until_interrupted(tmp_path):
    with view(make_store(tmp_path / "store"), "--port", 0, "--token") as process:
        try:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", process.stderr.readline())
            assert found is not None
            port, token = found.groups()
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
            answers = []
            for path in ("/", f"/?token={token}"):
                connection.request("GET", path)
                answers.append(connection.getresponse())
                answers[-1].read()
            assert [one.status for one in answers] == [403, 303]
            process.send_signal(signal.SIGINT)  # while the connection is open
            assert process.wait(20) == 0
            connection.close()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}/nothing"], "is no run, store or checkpoint"),
        (["{}", "--host", "no.such.host.invalid"], "give another --host or --port"),
        (["{}", "--export", "mp4", "x.mp4"], "expected rerun FILE.rrd"),
        (["{}", "--episode", "3"], "--episode chooses what --export writes"),
    ],
)
def test_what_it_refuses(arguments, said, tmp_path, capsys):
    make_store(tmp_path / "store")
    with pytest.raises(SystemExit) as ended:
        main(["view", *(one.format(tmp_path / "store") for one in arguments)])
    assert ended.value.code == 2 and said in capsys.readouterr().err
