"""``dtprof plan search`` and ``dtprof plan explain``: what they print, and their exit codes."""

import json
from pathlib import Path

import pytest

from dtprof.cli import main

SPEC = """
model = "Llama 3 8B"
software = "fsdp2-compile"

[cluster]
gpu = "H100 SXM"
gpus = {gpus}
inter = "8x400 Gbit/s"

[layout]
seq = 8192
global_batch = {batch}
{fixed}
[search]
price_per_gpu_hour = 2.5
"""


@pytest.fixture
def spec(tmp_path: Path):
    def write(gpus=16, batch=64, fixed=""):
        path = tmp_path / "spec.toml"
        path.write_text(SPEC.format(gpus=gpus, batch=batch, fixed=fixed))
        return str(path)

    return write


def document(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_search_tells_the_fastest_and_why_the_others_lose(spec, capsys):
    assert main(["plan", "search", spec(), "--json"]) == 0
    told = document(capsys)
    best = told["best"]
    assert best["seconds_per_step"] == min(one["seconds_per_step"] for one in told["ranked"])
    assert best["low"] < best["seconds_per_step"] < best["high"]
    assert best["memory"]["device_bytes"] <= 80e9
    assert best["cost_per_1e9_tokens"] == pytest.approx(2.5 * best["gpu_hours_per_1e9_tokens"])
    assert best["layout"]["gpus"] == 16
    assert sum(best["seconds_by_part"].values()) == pytest.approx(best["seconds_per_step"])
    assert any(miss["reason"] == "memory" and " of 80.0 GB" in miss["nearest"] for miss in told["lost"])
    assert "catalogue" in told["calibrated_by"]
    assert main(["plan", "search", spec()]) == 0
    text = capsys.readouterr().out
    assert text.startswith("FASTEST")
    assert best["name"] in text.replace("\n          ", " ")
    assert max(map(len, text.splitlines())) <= 80


def test_a_search_without_a_layout_says_what_would_do(spec, capsys):
    assert main(["plan", "search", spec(gpus=1, batch=4), "--json"]) == 1
    told = document(capsys)
    assert told["best"] is None
    assert any("GPUs" in text for text in told["would_fit"])
    assert main(["plan", "search", spec(gpus=1, batch=4)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("NO LAYOUT")
    assert "WOULD DO" in text


def test_a_layout_that_is_fixed_is_explained_beside_the_one_left_open(spec, capsys):
    path = spec(fixed="tp = 8\ndp = 2\nmicro_batch = 1\nzero = 1\n")
    assert main(["plan", "explain", path, "--json"]) == 0
    told = document(capsys)
    assert (told["layout"]["layout"]["tp"], told["layout"]["layout"]["zero"]) == (8, 1)
    assert told["left_open"]["seconds_per_step"] < told["layout"]["seconds_per_step"]
    assert {"tp 8 -> 4", "ZeRO-1 -> ZeRO-2"} <= {one["change"] for one in told["neighbours"]}
    assert all(one["why"] for one in told["neighbours"])
    assert main(["plan", "explain", path]) == 0
    text = capsys.readouterr().out
    assert "OPEN" in text
    assert "One change at a time" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_free_layout_has_none_beside_it(spec, capsys):
    assert main(["plan", "explain", spec(), "--json"]) == 0
    assert document(capsys)["left_open"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "none.toml"], "no such file"),
        (["explain"], "SPEC.toml"),
        (["search", "{spec}", "--from", "nowhere"], "nowhere"),
        (["find", "{spec}"], "find"),
    ],
)
def test_what_cannot_be_done_is_one_line(spec, capsys, words, message):
    assert main(["plan", *(word.format(spec=spec()) for word in words)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_module_is_measured_and_not_searched_over(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef build(micro_batch):\n    return torch.nn.Linear(1000, 500), (torch.zeros(micro_batch, 1000),)\n"
    )
    path = tmp_path / "spec.toml"
    path.write_text(
        '[model]\nmodule = "net.py:build"\n[cluster]\ngpu = "A100 40GB"\n[layout]\nmicro_batch = 2\nprecision = "fp32"\n'
    )
    assert main(["plan", "search", str(path)]) == 3
    assert "no dimensions" in capsys.readouterr().err
    assert main(["plan", "explain", str(path), "--json"]) == 0
    told = document(capsys)
    assert told["parameters"] == 500_500
    assert told["memory"]["parameters_bytes"] == 4 * 500_500
    assert told["fit"] == "fits"
    path.write_text(path.read_text().replace("micro_batch = 2", "micro_batch = 2\nseq = 5"))
    assert main(["plan", "explain", str(path)]) == 3
    assert "layout.seq" in capsys.readouterr().err
