"""The callbacks as loops of Lightning and of the Trainer call them, without either: the order of calls is what counts."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from dtprof.errors import InputError, MissingExtra
from dtprof.jsonl import read_lines
from dtprof.session import active

LIGHTNING, HUGGINGFACE = "dtprof.integrations.lightning", "dtprof.integrations.huggingface"


class Loss:
    """What stands in for a tensor of one element."""

    def __init__(self, value, device="cpu"):
        self.value, self.device = value, SimpleNamespace(type=device)

    def numel(self):
        return 1

    def detach(self):
        return self

    def __float__(self):
        if self.device.type != "cpu":
            raise AssertionError("a device was waited for")
        return self.value


class Trainer:
    """Lightning's, as far as the callback looks."""

    def __init__(self):
        self.global_step, self.sanity_checking, self.saved = 0, False, []

    def save_checkpoint(self, path):
        self.saved.append(path)


def loaded(monkeypatch, name, **stand_ins):
    """The module, imported anew where ``stand_ins`` are the only frameworks that there are."""
    for framework in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, framework, None)
    for framework, attribute in stand_ins.items():
        module = ModuleType(framework)
        setattr(module, attribute, type(attribute, (), {}))
        monkeypatch.setitem(sys.modules, framework, module)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.fixture
def lightning(monkeypatch, tmp_path):
    module = loaded(monkeypatch, LIGHTNING, pytorch_lightning="Callback")
    yield module.DtprofCallback(tmp_path / "run", capture=None, collectors=[])
    monkeypatch.delitem(sys.modules, LIGHTNING)


@pytest.fixture
def huggingface(monkeypatch, tmp_path):
    module = loaded(monkeypatch, HUGGINGFACE, transformers="TrainerCallback")
    yield module.DtprofCallback(tmp_path / "run", capture=None, collectors=[])
    monkeypatch.delitem(sys.modules, HUGGINGFACE)


def steps(folder, part="part00000"):
    rows, bad = read_lines(folder / "run" / part / "steps.jsonl")
    assert bad == 0
    return rows


def kinds(folder):
    return [row["kind"] for row in steps(folder)]


def batch(callback, trainer, loss, optimizers=0):
    callback.on_train_batch_start(trainer, None, None, 0)
    callback.on_before_backward(trainer, None, loss)
    callback.on_after_backward(trainer, None)
    for _ in range(optimizers):
        callback.on_before_optimizer_step(trainer, None, None)
        trainer.global_step += 1
    callback.on_train_batch_end(trainer, None, {"loss": loss}, None, 0)


def test_batches_that_accumulate_are_one_step_with_their_mean(lightning, tmp_path):
    trainer = Trainer()
    lightning.on_train_start(trainer, None)
    for value in (0.5, 0.25, 1.0):
        batch(lightning, trainer, Loss(value))
        batch(lightning, trainer, Loss(2 * value), optimizers=1)
    lightning.on_train_end(trainer, None)
    lightning.teardown(trainer, None, "fit")
    assert [row["loss"] for row in steps(tmp_path)] == [1.5, 0.75, 3.0]
    assert kinds(tmp_path) == ["warm-up", "train", "train"]


def test_two_optimizers_of_one_batch_are_one_step(lightning, tmp_path):
    trainer = Trainer()
    lightning.on_train_start(trainer, None)
    for _ in range(3):
        batch(lightning, trainer, Loss(1.0), optimizers=2)
    lightning.teardown(trainer, None, "fit")
    assert len(steps(tmp_path)) == 3


def test_validation_and_checkpoints_are_steps_of_their_own(lightning, tmp_path):
    trainer = Trainer()
    trainer.sanity_checking = True
    lightning.on_validation_start(trainer, None)
    lightning.on_validation_end(trainer, None)
    trainer.sanity_checking = False
    lightning.on_train_start(trainer, None)
    batch(lightning, trainer, Loss(1.0), optimizers=1)
    lightning.on_validation_start(trainer, None)
    lightning.on_validation_end(trainer, None)
    trainer.save_checkpoint("a")
    batch(lightning, trainer, Loss(1.0), optimizers=1)
    lightning.on_train_end(trainer, None)
    trainer.save_checkpoint("last")
    lightning.teardown(trainer, None, "fit")
    trainer.save_checkpoint("after")
    assert trainer.saved == ["a", "last", "after"]
    assert kinds(tmp_path) == ["warm-up", "eval", "checkpoint", "train", "checkpoint"]
    assert "save_checkpoint" not in vars(trainer)


def test_a_loss_on_a_device_is_not_read(lightning, tmp_path):
    trainer = Trainer()
    lightning.on_train_start(trainer, None)
    batch(lightning, trainer, Loss(1.0, "cuda"))
    batch(lightning, trainer, Loss(1.0, "cuda"), optimizers=1)
    lightning.teardown(trainer, None, "fit")
    assert ["loss" in row for row in steps(tmp_path)] == [False]


def test_a_checkpoint_that_fails_fails_for_the_job_as_ever(lightning, tmp_path):
    trainer = Trainer()
    lightning.on_train_start(trainer, None)
    batch(lightning, trainer, Loss(1.0), optimizers=1)
    with pytest.raises(TypeError):
        trainer.save_checkpoint()
    lightning.on_exception(trainer, None, TypeError())
    lightning.teardown(trainer, None, "fit")
    assert active() is None
    assert kinds(tmp_path) == ["warm-up", "checkpoint"]


def test_a_second_fit_is_a_second_part(lightning, tmp_path):
    for _ in range(2):
        trainer = Trainer()
        lightning.on_train_start(trainer, None)
        batch(lightning, trainer, Loss(1.0), optimizers=1)
        lightning.teardown(trainer, None, "fit")
    assert len(list((tmp_path / "run").glob("part*"))) == 2


def test_a_resumed_fit_goes_on_counting(lightning, tmp_path):
    trainer = Trainer()
    trainer.global_step = 40
    lightning.on_train_start(trainer, None)
    batch(lightning, trainer, Loss(1.0), optimizers=1)
    lightning.teardown(trainer, None, "fit")
    assert [row["step"] for row in steps(tmp_path)] == [40]


def test_the_package_that_the_script_has_imported_comes_first(monkeypatch):
    module = loaded(monkeypatch, LIGHTNING, pytorch_lightning="Callback")
    assert module.DtprofCallback.__mro__[1] is sys.modules["pytorch_lightning"].Callback
    monkeypatch.delitem(sys.modules, LIGHTNING)


def test_the_trainer_s_steps(huggingface, tmp_path):
    state = SimpleNamespace(global_step=0)
    huggingface.on_train_begin(None, state, None)
    for step in range(4):
        huggingface.on_pre_optimizer_step(None, state, None)
        huggingface.on_optimizer_step(None, state, None)
        huggingface.on_step_end(None, state, None)
        if step % 2:
            huggingface.on_evaluate(None, state, None, metrics={})
            huggingface.on_save(None, state, None)
    huggingface.on_train_end(None, state, None)
    assert kinds(tmp_path) == ["warm-up", "train", "eval", "checkpoint", "train", "train", "eval", "checkpoint"]
    assert active() is None


def test_evaluation_without_training_records_nothing(huggingface, tmp_path):
    huggingface.on_evaluate(None, SimpleNamespace(global_step=0), None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "command"), [(LIGHTNING, "dtprof[lightning]"), (HUGGINGFACE, "dtprof[huggingface]")], ids=["lightning", "hf"]
)
def test_what_is_not_installed_is_named_with_its_command(monkeypatch, name, command):
    with pytest.raises(MissingExtra, match="not installed") as told:
        loaded(monkeypatch, name)
    assert command in told.value.hint
    assert told.value.exit_code == 4


def test_a_window_that_is_none_is_said_at_once(lightning, tmp_path):
    with pytest.raises(InputError):
        type(lightning)(tmp_path / "run", capture="8:5")
