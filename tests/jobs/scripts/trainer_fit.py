"""A tiny GPT-2 with random weights under the Hugging Face Trainer; with DTPROF_CALLBACK set to a folder it uses the callback.

usage: trainer_fit.py FILE: losses of every forward pass as hex floats, one a line
"""

import os
import sys
from pathlib import Path
from typing import ClassVar

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count):
        self.ids = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class Recorded(GPT2LMHeadModel):
    losses: ClassVar[list[str]] = []

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        self.losses.append(out.loss.item().hex())
        return out


def main():
    torch.set_num_threads(1)
    set_seed(3)
    model = Recorded(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    # 48 rows by 4, accumulated by 2: 6 steps an epoch, 12 in all
    args = TrainingArguments(
        output_dir=str(Path(sys.argv[1]).parent / "trainer"), num_train_epochs=2, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=6, save_strategy="steps", save_steps=6,
        logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, seed=3, remove_unused_columns=False,
    )  # fmt: skip
    callbacks = []
    if out := os.environ.get("DTPROF_CALLBACK"):
        from dtprof.integrations.huggingface import DtprofCallback

        callbacks.append(DtprofCallback(out, capture="3:5"))
    trainer = Trainer(model=model, args=args, train_dataset=Tokens(48), eval_dataset=Tokens(8), callbacks=callbacks)
    trainer.train()
    assert trainer.state.global_step == 12
    Path(sys.argv[1]).write_text("\n".join(model.losses))


if __name__ == "__main__":
    main()
