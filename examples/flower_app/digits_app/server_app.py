"""The server's side."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

import coterie
from digits_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    torch.manual_seed(0)
    strategy = coterie.flower.strategy(
        coterie.IFCA(clusters=2), sites=int(config["nodes"]), parts=("train", "test"), out=config["out"] or None
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord({"rate": config["rate"]}),
    )
    print("who shares a model with whom:", dict(sorted(strategy.groups.items())))
