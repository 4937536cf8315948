"""The verb: what it refuses, and how the server is started."""

import argparse
import socket

import pytest

from dtprof.cli.parser import find_command, help_text
from dtprof.errors import InputError, MissingExtra
from dtprof_dashboards import command as module
from dtprof_dashboards.command import DashboardCommand, command, environment


def args(*words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    DashboardCommand().configure(parser)
    return parser.parse_args(words)


def test_it_is_a_verb():
    assert isinstance(find_command("dashboard"), DashboardCommand)
    assert "dashboard" in help_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/no/such/folder"], "no such file or folder"),
        ([""], "no such file or folder"),
        ([".", "--address", "example"], "no IP address"),
        ([".", "--port", "0"], "not from 1 to 65535"),
        ([".", "--port", "70000"], "not from 1 to 65535"),
    ],
)
def test_it_refuses(words, says):
    with pytest.raises(InputError, match=says) as caught:
        DashboardCommand().run(args(*words))
    assert caught.value.hint


def test_a_port_that_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="cannot be served"):
            DashboardCommand().run(args(str(tmp_path), "--port", str(taken.getsockname()[1])))


def test_without_streamlit_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra) as caught:
        DashboardCommand().run(args(str(tmp_path)))
    assert caught.value.hint == "pip install 'dtprof[dashboard]'"


def test_the_server_stays_on_loopback_and_sends_nothing(tmp_path):
    words = command("127.0.0.1", 8600)
    assert {"--server.address=127.0.0.1", "--browser.gatherUsageStats=false", "--server.headless=true"} <= set(words)
    assert command("127.0.0.1", 8600)[1:4] == ["-P", "-m", "streamlit"]
    assert args().address == "127.0.0.1"
    assert environment(tmp_path)["DTPROF_DASHBOARD"] == str(tmp_path)


def in_one_instant(monkeypatch):
    """What the first look at the ports finds is no longer true when the server is started."""
    looked = module._taken
    seen = []

    def once(address, port):
        seen.append(port)
        return None if len(seen) == 1 else looked(address, port)

    monkeypatch.setattr(module, "_taken", once)


def stop_at_once(url, root, port, pid, as_json):
    raise KeyboardInterrupt(port)


def test_a_port_that_another_program_takes_meanwhile(monkeypatch, tmp_path, capfd):
    in_one_instant(monkeypatch)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    monkeypatch.setattr(module, "_say", stop_at_once)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "FIRST_PORT", port)
        with pytest.raises(KeyboardInterrupt) as caught:
            DashboardCommand().run(args(str(tmp_path)))
    assert port < caught.value.args[0] < port + module.PORTS


def test_a_wanted_port_that_another_program_takes_meanwhile(monkeypatch, tmp_path):
    in_one_instant(monkeypatch)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="cannot be served"):
            DashboardCommand().run(args(str(tmp_path), "--port", str(taken.getsockname()[1])))
