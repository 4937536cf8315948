import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from dtprof.launch.process import run_child

ENV = dict(os.environ)


def python(text):
    return [sys.executable, "-c", textwrap.dedent(text)]


@pytest.mark.parametrize("code", [0, 1, 3, 70, 255])
def test_the_code_is_the_childs_own(code):
    assert run_child(python(f"raise SystemExit({code})"), ENV) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_signal_gives_the_code_that_a_shell_gives(number):
    by_shell = subprocess.run(["sh", "-c", f"sh -c 'kill -{number} $$'; exit $?"], check=False).returncode
    assert run_child(python(f"import os; os.kill(os.getpid(), {number})"), ENV)[0] == by_shell == 128 + number


def test_what_cannot_be_started_has_a_shells_code_and_one_line(tmp_path):
    assert run_child(["no-such-program-here"], ENV) == (127, "no-such-program-here: command not found")
    assert run_child([str(tmp_path / "absent")], ENV)[0] == 127
    script = tmp_path / "script"
    script.write_text("exit 0\n")
    code, problem = run_child([str(script)], ENV)
    assert code == 126 and "cannot be executed" in problem
    assert run_child([str(tmp_path)], ENV)[0] == 126


def test_the_child_blocks_no_signal_and_handles_them_as_ever():
    text = """
        import signal
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        raise SystemExit(len(blocked) or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
    """
    assert run_child(python(text), ENV) == (0, "")
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(number, tmp_path):
    ready = tmp_path / "ready"
    child = f"""
        import pathlib, signal, sys
        signal.signal({int(number)}, lambda *_: sys.exit(40 + {int(number)}))
        pathlib.Path({str(ready)!r}).touch()
        signal.pause()
    """
    parent = f"""
        import os, sys
        from dtprof.launch.process import run_child
        print(run_child([sys.executable, "-c", {textwrap.dedent(child)!r}], dict(os.environ)))
    """
    process = subprocess.Popen(python(parent), stdout=subprocess.PIPE, text=True)
    while not ready.exists() and process.poll() is None:
        pass
    os.kill(process.pid, number)
    said, _ = process.communicate(timeout=30)
    assert said.strip() == f"({40 + number}, '')"


def test_too_long_is_ended_and_said():
    code, problem = run_child(python("import time; time.sleep(60)"), ENV, timeout_s=0.5)
    assert code == 128 + signal.SIGTERM
    assert problem == "ended after 0.5 s"


def test_outside_the_main_thread_it_runs_too():
    got = []
    thread = threading.Thread(target=lambda: got.append(run_child(python("raise SystemExit(5)"), ENV)))
    thread.start()
    thread.join()
    assert got == [(5, "")]


def test_stdout_goes_where_it_is_told(tmp_path):
    with (tmp_path / "out").open("w+") as file:
        assert run_child(python("print('hello')"), ENV, stdout=file.fileno()) == (0, "")
        file.seek(0)
        assert file.read() == "hello\n"
