"""A fresh process that restores saved states and prints what comes next; run as a module with the job file."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.conftest import data_module, digest


def rest(job: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The digests of the next packs after `state`, and of those after saving again at once."""
    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"])
    module = data_module(Path(job["dataset"]), tokenizer, **job["options"])
    module.load_state_dict(state)
    again = module.state_dict()
    following = list(itertools.islice(module.train_dataloader(), job["num_following"]))
    second = data_module(Path(job["dataset"]), tokenizer, **job["options"])
    second.load_state_dict(again)
    head = list(itertools.islice(second.train_dataloader(), 2))
    return {
        "rest": [digest(batch.check()) for batch in following],
        "saved_again": [digest(batch) for batch in head],
        "drops": module.train_dataloader().drops.to_dict(),
    }


def main() -> None:
    job = pickle.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps([rest(job, state) for state in job["states"]]))


if __name__ == "__main__":
    main()
