"""A table in, the same table with predictions out."""

import csv
import json
import random

import pytest

from dtprof.cli import main
from dtprof.errors import InputError
from dtprof.plan.calibrated import calibration
from dtprof.plan.machines import gpu_called
from dtprof.plan.predict import COLUMNS, Predictor, predicted_rows, read_rows
from dtprof.plan.presets import preset
from dtprof.plan.rows import parse
from dtprof.plan.software import software
from dtprof.plan.spec import Cluster

HEADER = [
    "source", "model", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gpus", "gpu_type", "intra_bw",
    "inter_bw", "tp", "pp", "vpp", "cp", "ep", "dp", "zero_stage_sharding", "micro_batch", "global_batch", "recompute", "dtype",
    "attn", "step_time_s", "tokens_s_gpu", "tflops_gpu", "mfu", "peak_mem_gb", "notes",
]  # fmt: skip


def line(**values):
    return [str(values.get(name, "")) for name in HEADER]


MPT = line(source="mosaicml/llm-foundry", model="MPT-7b", seq=2048, gpus=8, gpu_type="a100_80gb", tp=1, pp=1, dp=8,
           zero_stage_sharding="FULL_SHARD", micro_batch=6, global_batch=96, recompute="none", dtype="amp_bf16", attn="flash",
           notes="a, comma")  # fmt: skip
RESNET = line(source="NVIDIA/DeepLearningExamples", model="ResNet-50", gpus=8, gpu_type="A100 80GB")
HUGE = line(source="pytorch/torchtitan", model="Llama 3 405B", seq=8192, gpus=8, gpu_type="H100", tp=1, pp=1, dp=8,
            micro_batch=1, global_batch=8, zero_stage_sharding="FSDP2", recompute="full", dtype="bf16")  # fmt: skip


def written(path, *rows, header=HEADER):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def told(row):
    return Predictor().row(dict(zip(HEADER, row, strict=True)))


def test_same_rows_same_order_all_columns(tmp_path, capsys):
    table = written(tmp_path / "rows.csv", MPT, RESNET, HUGE)
    assert main(["plan", "predict", str(table), "-o", str(tmp_path / "out.csv"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["predicted"], document["do_not_fit"]) == (3, 2, 1)
    with (tmp_path / "out.csv").open(newline="") as file:
        out = list(csv.reader(file))
    assert out[0] == [*HEADER, *COLUMNS]
    assert [row[: len(HEADER)] for row in out[1:]] == [MPT, RESNET, HUGE]


def test_a_predicted_row():
    found = told(MPT)
    seconds, tokens = float(found["pred_step_time_s"]), float(found["pred_tokens_s_gpu"])
    assert tokens == pytest.approx(96 * 2048 / seconds / 8, rel=1e-4)
    # 6 N + 12 L h s, as LLM-Foundry counts
    per_token = 6 * 6.65e9 + 12 * 32 * 4096 * 2048
    assert float(found["pred_tflops_gpu"]) == pytest.approx(per_token * tokens / 1e12, rel=1e-3)
    assert found["pred_tflops_convention"] == "PaLM"
    assert float(found["pred_low"]) < seconds < float(found["pred_high"])
    assert found["fits"] == "true"
    assert "LLM-Foundry on A100" in found["calibrated_by"]


def test_a_row_that_cannot_be_predicted_is_blank_with_its_reason():
    found = told(RESNET)
    assert "no dimensions" in found["reason"]
    assert all(found[name] == "" for name in COLUMNS if name != "reason")


def test_a_row_that_does_not_fit_has_a_time_all_the_same():
    found = told(HUGE)
    assert found["fits"] == "false"
    assert "GB" in found["reason"]
    assert float(found["pred_step_time_s"]) > 0


def test_a_row_silent_about_recomputation_is_laid_out_with_as_little_as_fits():
    row = dict(zip(HEADER, HUGE, strict=True)) | {"model": "Llama 3 8B", "micro_batch": "4", "global_batch": "32"}
    silent, none = ({**row, "recompute": word} for word in ("", "none"))
    assert Predictor().row(none)["fits"] == "false"
    found = Predictor().row(silent)
    assert (found["fits"], "recomputation" in found["reason"]) == ("true", True)


def test_measured_columns_and_notes_change_nothing():
    scrambled = dict(zip(HEADER, MPT, strict=True))
    scrambled |= dict.fromkeys(("step_time_s", "tokens_s_gpu", "tflops_gpu", "mfu", "peak_mem_gb"), "123456")
    scrambled["notes"] = "recompute=full; h100; tput=1"
    assert Predictor().row(scrambled) == told(MPT)


def test_columns_that_are_there_already_are_written_over():
    header, (row,) = predicted_rows(["pred_step_time_s", *HEADER], [["old", *MPT]], Predictor())
    assert header.count("pred_step_time_s") == 1
    assert row[0] == told(MPT)["pred_step_time_s"]


def test_short_rows_and_a_mark_at_the_beginning(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_bytes(b"\xef\xbb\xbfmodel,gpus,gpu_type,notes\nLlama 3 8B,8,H100\n\n")
    header, rows = read_rows(table)
    assert header[0] == "model"
    assert rows == [["Llama 3 8B", "8", "H100", ""]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no header"),
        (b"a,b\n1,2\n", "no column model"),
        (b"model,gpus,gpu_type\nm,1,H100,9\n", "row 2 has 4 values"),
        (b'model,gpus,gpu_type\n"m,1\n', "rows.csv"),
        (b"model,gpus,gpu_type\n\xff\xfe,1,x\n", "rows.csv"),
    ],
    ids=["empty", "other", "long", "quote", "bytes"],
)
def test_a_file_that_is_no_table(tmp_path, content, said):
    table = tmp_path / "rows.csv"
    table.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_rows(table)


def test_files_that_are_not_there(tmp_path, capsys):
    table = written(tmp_path / "rows.csv", MPT)
    assert main(["plan", "predict", str(tmp_path / "none.csv"), "-o", str(tmp_path / "out.csv")]) == 3
    assert main(["plan", "predict", str(table), "-o", str(tmp_path / "no" / "out.csv")]) == 3
    assert capsys.readouterr().err.count("\n") == 2


def test_intervals_are_wider_the_less_is_known():
    model = preset("Llama 3 8B")
    a100, h100 = (Cluster(gpu_called(name), 8, 8, 80 * 10**9, 300.0, 0.0) for name in ("A100 80GB", "H100"))
    fitted = calibration(model, a100, software("fsdp-2023"))
    catalogue = calibration(model, h100, software("megatron-core"))
    experts = calibration(preset("Mixtral 8x7B"), h100, software("megatron-core"))
    assert fitted.high / fitted.low < catalogue.high / catalogue.low < experts.high / experts.low
    assert catalogue.name.startswith("catalogue")
    alone = calibration(model, h100, software("fsdp-2023"), catalogue=True)
    assert alone.name.startswith("catalogue")
    assert alone.constants.hopper_products == 1.0


def test_the_same_constants_for_rows_of_one_kind():
    predictor = Predictor()
    plan = parse(dict(zip(HEADER, MPT, strict=True)))
    assert predictor.estimate(plan) == predictor.estimate(plan)
    assert len(predictor.known) == 1


JUNK = ("", "0", "-1", "1e400", "nan", "inf", "1e12", "3.7", "abc", "8x", "99999999999999999999", "full", "fp8",
        "ZeRO-9 group=0", "H100", "V100", "T4", "1", "2", "3", "5", "1000", "HSDP", "Mixtral 8x7B", "DeepSeek-V3", "BERT",
        "Llama 3 8B")  # fmt: skip


def test_no_row_is_too_strange_to_be_answered():
    draw = random.Random(7)
    for _ in range(400):
        row = dict(zip(HEADER, draw.choice((MPT, RESNET, HUGE)), strict=True))
        row |= {name: draw.choice(JUNK) for name in draw.sample(HEADER, draw.randint(1, 9))}
        found = Predictor().row(row)
        if found["pred_step_time_s"]:
            assert 0 < float(found["pred_low"]) < float(found["pred_step_time_s"]) < float(found["pred_high"]) < 1e30
        else:
            assert found["reason"]


# tables of real measurements: mean absolute errors that have to hold
@pytest.mark.parametrize(
    ("table", "gpu", "most"),
    [("vtrain_single", "A100", 0.07), ("llm_foundry", "A100", 0.055), ("llm_foundry", "H100", 0.05),
     ("internevo_7b", "A100", 0.03), ("megatron_bridge", "H100", 0.10)],
)  # fmt: skip
def test_published_steps_are_predicted(truth, table, gpu, most):
    _, rows = read_rows(truth / "tables/develop" / f"{table}.csv")
    predictor, errors = Predictor(), []
    for row in rows:
        values = dict(zip(HEADER, row, strict=True))
        if gpu_called(values["gpu_type"]).name[:4] != gpu or "Nemotron" in values["model"]:
            continue
        plan = parse(values)
        if plan.model.moe is not None:
            continue
        found = predictor.row(values)
        if values["step_time_s"]:
            errors.append(float(found["pred_step_time_s"]) / float(values["step_time_s"]) - 1)
        elif values["tokens_s_gpu"]:
            errors.append(float(values["tokens_s_gpu"]) / float(found["pred_tokens_s_gpu"]) - 1)
    assert len(errors) >= 6
    assert sum(map(abs, errors)) / len(errors) <= most
