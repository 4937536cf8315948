"""``plan predict --from`` on a run that a sample job recorded."""

import csv
import json
import re
import shutil
import statistics

import pytest

from dtprof.cli import main

# the job and its report take 10 s
pytestmark = pytest.mark.slow

WORDS = "job ddp --ranks 2 --steps 14 --layers 4 --dim 64 --heads 2 --seq 32 --batch 4 --vocabulary 128 --capture 5:8"
COLUMNS = (
    "source,model,layers,hidden,heads,vocab,seq,gpus,gpu_type,dp,zero_stage_sharding,micro_batch,global_batch,dtype,params"
)
ROW = "mine,gpt,4,64,2,128,32,2,{gpu},2,DDP,{batch},{whole},fp32,"
GPU, NAME = "NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"
# seconds of a step that a GPU might take
STEP_S = 0.02


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The run as it was recorded on this machine."""
    out = tmp_path_factory.mktemp("job") / "run"
    assert main([*WORDS.split(), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def moved(recorded, tmp_path_factory):
    """The same as if on GPUs: their name, and all steps faster by one factor; with the median step, seconds."""
    out = tmp_path_factory.mktemp("gpu") / "run"
    shutil.copytree(recorded, out, ignore=shutil.ignore_patterns("tables", "*.gz"))
    for path in (out / "manifest.json", *out.glob("part*/part.json")):
        device = json.loads((recorded / "part00000/part.json").read_text())["device"]
        path.write_text(path.read_text().replace(device, GPU))
    rows = {path: [json.loads(line) for line in path.read_text().splitlines()] for path in out.glob("part*/steps.jsonl")}
    every = [row for found in rows.values() for row in found if row["kind"] == "train"]
    untraced = [row["host_dur"] for row in every if not row["captured"]]
    assert 0 < len(untraced) < len(every)
    factor = STEP_S * 1e9 / statistics.median(untraced)
    for path, found in rows.items():
        told = [{**row, "host_dur": round(row["host_dur"] * factor)} for row in found]
        path.write_text("".join(json.dumps(row) + "\n" for row in told))
    return out


def steps_of(run):
    return [json.loads(line) for path in sorted(run.glob("part*/steps.jsonl")) for line in path.read_text().splitlines()]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def predict(tmp_path, *rows, run):
    table, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return main(["plan", "predict", str(table), "-o", str(out), "--from", str(run)]), out


def test_a_run_is_predicted_as_it_was_measured_and_other_gpus_by_the_catalogue(moved, tmp_path):
    rows = [
        ROW.format(gpu=NAME, batch=4, whole=8),
        ROW.format(gpu=NAME, batch=256, whole=512),
        ROW.format(gpu="H100 SXM", batch=4, whole=8),
    ]
    code, out = predict(tmp_path, *rows, run=moved)
    assert code == 0
    same, larger, other = rows_of(out)
    told = re.fullmatch(rf"the run {moved}: ([\d.]+) s a step where [\d.]+ s were expected without it", same["calibrated_by"])
    untraced = [row["host_dur"] * 1e-9 for row in steps_of(moved) if row["kind"] == "train" and not row["captured"]]
    assert min(untraced) <= float(told[1]) <= max(untraced)
    assert float(same["pred_step_time_s"]) == pytest.approx(float(told[1]), rel=0.01)
    assert float(larger["pred_step_time_s"]) > float(same["pred_step_time_s"])
    assert float(same["pred_high"]) / float(same["pred_step_time_s"]) == pytest.approx(1.15, rel=1e-4)
    assert "catalogue" in other["calibrated_by"]


def test_a_run_that_says_nothing_of_any_row_is_refused(moved, tmp_path, capsys):
    code, out = predict(tmp_path, ROW.format(gpu="H100 SXM", batch=4, whole=8), run=moved)
    assert (code, out.exists()) == (3, False)
    assert NAME in capsys.readouterr().err


def test_a_run_on_processors_calibrates_no_gpu(recorded, tmp_path, capsys):
    code, out = predict(tmp_path, ROW.format(gpu=NAME, batch=4, whole=8), run=recorded)
    assert (code, out.exists()) == (3, False)
    assert "not in the hardware catalogue" in capsys.readouterr().err
