"""A tiny fit, written without a thought of dtprof; with DTPROF_CALLBACK set to a folder it uses the callback.

usage: lightning_fit.py FILE: losses of every batch as hex floats, one a line
"""

import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.losses.append(loss.item().hex())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", (self.net(x) - y).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main():
    torch.set_num_threads(1)
    pl.seed_everything(3)
    x = torch.randn(96, 16)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    callbacks = [pl.callbacks.ModelCheckpoint(dirpath=Path(sys.argv[1]).parent / "checkpoints", every_n_epochs=1)]
    if out := os.environ.get("DTPROF_CALLBACK"):
        from dtprof.integrations.lightning import DtprofCallback

        callbacks.append(DtprofCallback(out, capture="3:5"))
    # 24 batches of 4, accumulated by 3: 8 optimizer steps an epoch, 16 in all
    trainer = pl.Trainer(
        max_epochs=2, accumulate_grad_batches=3, accelerator="cpu", devices=1, logger=False, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, DataLoader(data, 4, shuffle=True), DataLoader(data, 48))
    assert trainer.global_step == 16
    Path(sys.argv[1]).write_text("\n".join(model.losses))


if __name__ == "__main__":
    main()
