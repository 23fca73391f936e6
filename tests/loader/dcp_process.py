"""A rank that loads a checkpoint of torch.distributed.checkpoint, takes packs, and saves one: OUT JOB."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from transformers import AutoTokenizer

from mmpack.state import DistributedState
from tests.conftest import data_module, digest
from tests.distributed.launch import write_result


def main(out: str, job: str) -> None:
    options = json.loads(job)
    dist.init_process_group("gloo")
    tokenizer = AutoTokenizer.from_pretrained(options["tokenizer"])
    module = data_module(Path(options["dataset"]), tokenizer, num_streams=4)  # asks torch.distributed for its rank
    if options["load"]:
        dcp.load({"data": DistributedState(module)}, checkpoint_id=options["load"])
    batches = list(itertools.islice(module.train_dataloader(), options["steps"]))
    dcp.save({"data": DistributedState(module)}, checkpoint_id=options["save"])
    taken = [[batch.pack_index, digest(batch)] for batch in batches]
    write_result(out, dist.get_rank(), {"taken": taken})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
